"""What to run, where, and what it will cost: profiles, search, partition and placement."""
