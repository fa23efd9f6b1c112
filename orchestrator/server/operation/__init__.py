"""Berth's own processes and files: started, watched, kept small."""
