"""Starts an attempt on the devices that the scheduler chose."""
