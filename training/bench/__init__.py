"""Compares strategies by measurement: ``python -m training.bench --strategies ddp fsdp --gpus 1 2``."""
