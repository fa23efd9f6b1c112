"""Accepts a submit: checks it, stores its code and creates the job once."""
