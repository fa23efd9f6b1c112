"""Former name of ``training.layers.placement``, kept for scripts."""

from training.layers.placement import Links, NoPlacement, Placement, place

__all__ = ["Links", "NoPlacement", "Placement", "place"]
