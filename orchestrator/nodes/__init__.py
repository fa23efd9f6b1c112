"""Other servers: the port that serves one of them, and the folders of jobs on both sides.

Free of Django and the database, because it runs where neither is.
"""
