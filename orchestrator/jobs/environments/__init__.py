"""The packages of a job: what its code declares, resolved and built once for everybody while the job waits."""
