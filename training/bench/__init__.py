"""Measures strategies beside each other: ``python -m training.bench --strategies ddp fsdp --gpus 1 2``."""
