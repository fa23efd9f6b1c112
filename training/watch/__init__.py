"""Watches a running training: ranks that hang or are slow, losses that are not finite, time spent in exchanges."""
