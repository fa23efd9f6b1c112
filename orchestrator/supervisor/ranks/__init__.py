"""Starts the ranks of an attempt, finds them, and stops them."""
