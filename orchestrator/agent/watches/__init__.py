"""Watches over devices and runs that the agent calls with every round of readings."""
