"""What a person asks for: the fields of a job and of an array."""
