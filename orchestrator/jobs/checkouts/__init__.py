"""Fetches code from git while jobs wait: mirrors, commands in the sandbox, and what becomes of the jobs."""
