"""The pure core of sweeps: spaces, rungs and suggestions. No clock, database or Django; the replay runs the same code."""
