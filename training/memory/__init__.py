"""Less memory for the same training: recomputation, offload, smaller micro-batches."""
