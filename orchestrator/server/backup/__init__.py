"""A copy of everything that Berth keeps in one file, made while it runs, and the way back."""

from orchestrator.server.backup.restoring import CannotRestore, restore
from orchestrator.server.backup.writing import CannotBackUp, Contents, write

__all__ = ["CannotBackUp", "CannotRestore", "Contents", "restore", "write"]
