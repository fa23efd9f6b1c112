"""Sweeps: the search for good settings. core/ is pure; the other modules make trials into jobs and steer them."""
