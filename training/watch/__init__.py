"""Watches over a running training: ranks that hang or are slow, losses that are not finite, communication, errors."""
