"""Replays a job trace through the scheduler's own ``decide``: what would have waited how long."""
