"""Whole histories of a server in one thread: one seed, one history.

The code under test is the real one: submission, lifecycle, placement, launcher, the agent's loop and sweeps, on a
real database and real attempt folders.  What surrounds it is ours to bend: the clock, the table of processes, the
queue of wake-ups, supervisors, and whether a process or the database fails at a query.

python -m tests.chaos.simulation --histories 10000 [--seed 0]
"""
