"""Columns of numbers: metrics of jobs and readings of devices."""
