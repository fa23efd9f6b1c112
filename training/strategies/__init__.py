"""Strategies: how a step is spread over ranks.  They share the methods of ``interface.Strategy``."""
