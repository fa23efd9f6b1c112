"""The command line and the Python client: a package of its own that talks to a server over HTTP only."""

__version__ = "0.1.0"
