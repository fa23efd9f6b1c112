"""Replays of the scheduler: jobs of a trace, devices of a pool, and production's own ``decide`` in between."""
