"""Shells: an SSH server inside the sandbox of a running attempt, for its owner."""
