"""Data that jobs name by address: fetched once for everybody while the job waits, verified, and kept for a while."""
