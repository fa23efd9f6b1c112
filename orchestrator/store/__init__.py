"""Files on disk: bundles, logs, metric columns, checkpoints; addressed by offset or hash."""
