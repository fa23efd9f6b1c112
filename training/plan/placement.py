"""The name that scripts use for ``training.research.placement``."""

from training.research.placement import Links, NoPlacement, Placement, place

__all__ = ["Links", "NoPlacement", "Placement", "place"]
