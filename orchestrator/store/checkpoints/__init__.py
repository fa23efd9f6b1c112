"""Checkpoints of unchanged scripts: found, copied, verified and put back."""
