"""Former name of ``training.research.placement``, kept for scripts."""

from training.research.placement import Links, NoPlacement, Placement, place

__all__ = ["Links", "NoPlacement", "Placement", "place"]
