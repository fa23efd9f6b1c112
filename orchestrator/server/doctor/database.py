"""The database itself: its schema and its file."""

from collections.abc import Iterator

from django.core.management import call_command
from django.db import DatabaseError, OperationalError, connection
from django.db.migrations.executor import MigrationExecutor

from orchestrator.server.doctor.finding import Finding
from orchestrator.server.doctor.repairing import said


def check_schema() -> Iterator[Finding]:
    """Migrations that this version has and the database has not (F47)."""
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if plan:
        yield Finding(
            "F47",
            f"The database is of an older version: {len(plan)} migrations are missing.",
            "bring the database up to date",
            lambda: call_command("migrate", verbosity=0, interactive=False),
        )


def check_file() -> Iterator[Finding]:
    """Damage that SQLite itself can see."""
    if connection.vendor != "sqlite":
        return
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA quick_check(5)")
        said = [str(row[0]) for row in cursor.fetchall()]
        cursor.execute("PRAGMA foreign_key_check")
        dangling = len(cursor.fetchall())
    if said != ["ok"]:
        yield Finding("F52", f"The database file is damaged: {'; '.join(said)}. Restore the newest backup.")
    if dangling:
        yield Finding("F52", f"{dangling} rows of the database refer to rows that are not there.")


def unreadable(error: DatabaseError) -> Finding:
    """A database that answers no query: damaged, or not reached."""
    if isinstance(error, OperationalError):
        sentence = "Check that it is there, that it runs and that this user may read it"
    else:
        sentence = (
            "Stop Berth and restore the newest backup (`manage.py restore FILE`); what is there is kept aside"
        )
    return Finding("F52", f"The database cannot be read: {said(error)}. {sentence}.")
