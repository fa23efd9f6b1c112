"""Berth's server: accepts jobs, places them on devices, keeps them running."""

__version__ = "0.1.0"
