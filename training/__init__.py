"""The library that runs under torchrun; importable without torch."""
