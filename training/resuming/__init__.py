"""Lets trainers of other packages continue from the newest checkpoint when Berth restarts a job."""
