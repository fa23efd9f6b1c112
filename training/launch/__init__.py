"""Starts the ranks of a training on this machine: by torchrun, or forked from a warm process with torch loaded."""

from training.launch.launcher import (
    ENTRY,
    LaunchError,
    WarmLauncher,
    WarmRun,
    free_port,
    rank_environment,
    torchrun_command,
)

__all__ = [
    "ENTRY",
    "LaunchError",
    "WarmLauncher",
    "WarmRun",
    "free_port",
    "rank_environment",
    "torchrun_command",
]
