"""Writing files durably, and reading files that a job may have replaced."""
