"""Settings of a training, and the plan that follows from them.  Imports no torch."""

from training.config.settings import ConfigError, TrainConfig

__all__ = ["ConfigError", "TrainConfig"]
