"""Dump and load the database: SQLite by its backup API, PostgreSQL by its own tools."""

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

from django.db import connection, connections

from orchestrator.exceptions import Unavailable

SQLITE_NAME = "db.sqlite3"
POSTGRESQL_NAME = "db.dump"


class DatabaseToolFailed(Unavailable):
    """pg_dump or pg_restore is missing or failed; the sentence has its last line."""


def dump_name() -> str:
    return SQLITE_NAME if connection.vendor == "sqlite" else POSTGRESQL_NAME


def dump(path: Path) -> None:
    """Dump a consistent snapshot of the database while it is in use.

    Raises:
        DatabaseToolFailed
    """
    if connection.vendor == "sqlite":
        source = connection.settings_dict["NAME"]
        with closing(sqlite3.connect(source)) as database, closing(sqlite3.connect(path)) as copy:
            database.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")  # a single file, without a write-ahead log
        return
    _run_tool("pg_dump", "--format=custom", "--no-owner", f"--file={path}", *_address())


def keep_aside(path: Path) -> None:
    """Save the present database before it is replaced; a damaged file is copied as it is.

    Raises:
        DatabaseToolFailed
    """
    try:
        dump(path)
    except sqlite3.DatabaseError:
        source = Path(str(connection.settings_dict["NAME"]))
        for end in ("", "-wal", "-shm"):
            if (part := source.with_name(f"{source.name}{end}")).exists():
                shutil.copyfile(part, path.with_name(f"{path.name}{end}"))


def load(path: Path) -> None:
    """Replace the database with a dump.

    Raises:
        DatabaseToolFailed
    """
    connections.close_all()
    if connection.vendor == "sqlite":
        target = Path(str(connection.settings_dict["NAME"]))
        for name in (f"{target.name}-wal", f"{target.name}-shm"):
            target.with_name(name).unlink(
                missing_ok=True
            )  # the old database's: they would be replayed into the new one
        shutil.move(path, target)
        return
    _run_tool("pg_restore", "--clean", "--if-exists", "--no-owner", "--exit-on-error", *_address(), str(path))


def _address() -> list[str]:
    settings: dict[str, Any] = connection.settings_dict
    named = {"--host": settings["HOST"], "--port": settings["PORT"], "--username": settings["USER"]}
    options = [f"{name}={value}" for name, value in named.items() if value]
    return [*options, f"--dbname={settings['NAME']}"]


def _run_tool(name: str, *arguments: str) -> None:
    program = shutil.which(name)
    if program is None:
        raise DatabaseToolFailed(f"{name} is not installed; it comes with PostgreSQL's client package.")
    # Pass the password in the environment: everybody can read a process's arguments.
    password = str(connection.settings_dict["PASSWORD"])
    environment = {**os.environ, **({"PGPASSWORD": password} if password else {})}
    done = subprocess.run(  # noqa: S603  # a program found on PATH, arguments as a list
        [program, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise DatabaseToolFailed(f"{name} failed: {last}")
