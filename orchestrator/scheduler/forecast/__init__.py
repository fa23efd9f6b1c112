"""What would happen: a job before it is submitted, a change of one thing, other weeks under another policy."""
