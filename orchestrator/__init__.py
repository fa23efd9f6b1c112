"""Berth's server: accepts jobs, places them on devices, keeps them running."""

from berth import __version__ as __version__
