"""The training loop: ``epochs`` is the whole of it, to be read first; ``run`` is what it holds."""
