"""The supervisor: a detached process that owns one attempt.  Uses the standard library only."""
