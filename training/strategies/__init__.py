"""How a step is spread over ranks: one strategy, one file, the same method names."""
