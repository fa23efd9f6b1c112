"""Processes and system calls of Linux."""
