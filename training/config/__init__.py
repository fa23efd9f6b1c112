"""What a training is asked to do: a person's settings, and the plan that follows from them.  No torch here."""

from training.config.settings import ConfigError, TrainConfig

__all__ = ["ConfigError", "TrainConfig"]
