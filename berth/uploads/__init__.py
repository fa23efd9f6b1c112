"""What goes from this machine to the server: the folder of a job's code with its git state, and data."""
