"""What owns one attempt: a detached process that needs the standard library only."""
