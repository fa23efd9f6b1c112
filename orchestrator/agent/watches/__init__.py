"""What the agent watches for on devices and in runs, and what it does about it."""
