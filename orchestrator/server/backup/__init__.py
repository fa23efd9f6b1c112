"""Backups: everything that Berth stores in one file, written while it runs, and the restore."""

from orchestrator.server.backup.restoring import CannotRestore, restore
from orchestrator.server.backup.writing import CannotBackUp, Contents, write

__all__ = ["CannotBackUp", "CannotRestore", "Contents", "restore", "write"]
