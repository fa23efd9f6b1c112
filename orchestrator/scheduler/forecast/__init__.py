"""Forecasts: a job before its submit, one change to a waiting job, recorded weeks under another policy."""
