"""Schedules of the simulator on disk, and their score by an independent checker."""
