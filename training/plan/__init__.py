"""The planner: traces a step, predicts memory and time of every way to train, and chooses one."""
