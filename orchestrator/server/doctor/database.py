"""The database itself: its schema and its file."""

from collections.abc import Iterator

from django.core.management import call_command
from django.db import DatabaseError, OperationalError, connection
from django.db.migrations.executor import MigrationExecutor

from berth.shared.words import server_command
from orchestrator.server.doctor.findings import Finding, summary


def check_schema() -> Iterator[Finding]:
    """Migrations of this version that the database lacks."""
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
        problems = [str(row[0]) for row in cursor.fetchall()]
        cursor.execute("PRAGMA foreign_key_check")
        dangling = len(cursor.fetchall())
    if problems != ["ok"]:
        yield Finding(
            "F52", f"The database file is damaged: {'; '.join(problems)}. Restore the newest backup."
        )
    if dangling:
        yield Finding("F52", f"{dangling} rows of the database refer to missing rows.")


def unreadable(error: DatabaseError) -> Finding:
    """A finding for a database that answers no query: damaged or unreachable."""
    if isinstance(error, OperationalError):
        sentence = "Check that it exists and runs, and that this user may read it"
    else:
        restore = server_command("restore FILE")
        sentence = f"Stop Berth and restore the newest backup (`{restore}`); the present state is kept aside"
    return Finding("F52", f"The database cannot be read: {summary(error)}. {sentence}.")
