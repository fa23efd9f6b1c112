"""Less memory for the same training: recomputing, offloading, smaller micro-batches."""
