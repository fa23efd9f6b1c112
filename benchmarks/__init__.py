"""What Berth promises in numbers, measured: ``python -m benchmarks [NAME]``."""
