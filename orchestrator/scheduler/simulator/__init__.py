"""The scheduler replayed: jobs of a trace, devices of a pool, and the very same decide in between."""
