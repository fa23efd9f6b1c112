"""What the client, the command line and the server share: the table of a job's fields, and how values are written."""
