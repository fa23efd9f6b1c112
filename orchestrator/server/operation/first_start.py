"""Prepare a new state folder, or one of an older version, before the processes start."""

import secrets
import time
from collections.abc import Callable

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import DatabaseError, connections
from django.db.migrations.loader import MigrationLoader

import berth
from berth.shared.words import server_command
from orchestrator.exceptions import Unavailable
from orchestrator.live import wakeups
from orchestrator.server.static import collect_static

APP = "orchestrator"


class NotBroughtUpToDate(Unavailable):
    """The database stayed as it was; the sentence says why."""


def prepare(tell: Callable[[str], object]) -> None:
    """Update database and static files and create the first admin; repeating is harmless.

    Raises:
        NotBroughtUpToDate: with a sentence for the terminal.
    """
    began = time.monotonic()
    with wakeups.withheld():  # nobody listens yet
        migrate()
        collect_static()
        password = create_admin()
    connections.close_all()
    tell(f"Database and static files ready ({time.monotonic() - began:.1f} s)")
    if password:
        tell(f"\n  First admin:  user admin  password {password}   (shown only now)\n")


def migrate() -> None:
    """Bring the database up to date with this version.

    Raises:
        NotBroughtUpToDate: a migration failed, or the database is of a newer version.
    """
    try:
        if newer := unknown_migrations():
            raise NotBroughtUpToDate(
                f"The database is of a newer Berth than this one ({berth.__version__}): it has {newer[-1]}. "
                "Start that version again, or restore the backup from before the upgrade with "
                f"`{server_command('restore FILE')}`."
            )
        call_command("migrate", verbosity=0, interactive=False)
    except DatabaseError as error:
        raise NotBroughtUpToDate(
            f"The database could not be brought up to date ({error}); run the same command again."
        ) from None


def unknown_migrations() -> list[str]:
    """Our migrations that the database has and this version does not know, oldest first."""
    loader = MigrationLoader(connections["default"])
    known = set(loader.disk_migrations)
    for migration in loader.disk_migrations.values():
        known |= set(migration.replaces)
    return sorted(name for app, name in loader.applied_migrations if app == APP and (app, name) not in known)


def waiting_migrations() -> list[str]:
    """Our migrations that this version would apply to the database, oldest first."""
    loader = MigrationLoader(connections["default"])
    return sorted(
        name for app, name in set(loader.disk_migrations) - set(loader.applied_migrations) if app == APP
    )


def create_admin() -> str | None:
    """Create the first admin and return the random password; None if there are already accounts."""
    people = get_user_model().objects
    if people.exists():
        return None
    password = secrets.token_urlsafe(12)
    people.create_superuser("admin", password=password)
    return password
