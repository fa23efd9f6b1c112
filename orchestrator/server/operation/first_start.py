"""Prepare a new state folder, or one of an older version, before the processes start."""

import secrets
import time
from collections.abc import Callable

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import DatabaseError, connections

from orchestrator.exceptions import Unavailable
from orchestrator.server.static import collect_static


class NotBroughtUpToDate(Unavailable):
    """A migration failed; the database is in the state before it."""


def prepare(tell: Callable[[str], object]) -> None:
    """Update database and static files and create the first admin; repeating is harmless.

    Raises:
        NotBroughtUpToDate: with a sentence for the terminal.
    """
    began = time.monotonic()
    try:
        call_command("migrate", verbosity=0, interactive=False)
    except DatabaseError as error:
        raise NotBroughtUpToDate(
            f"The database could not be brought up to date ({error}); run the same command again."
        ) from None
    collect_static()
    password = create_admin()
    connections.close_all()
    tell(f"Database and static files ready ({time.monotonic() - began:.1f} s)")
    if password:
        tell(f"\n  First admin:  user admin  password {password}   (shown only now)\n")


def create_admin() -> str | None:
    """Create the first admin and return the random password; None if there are already accounts."""
    people = get_user_model().objects
    if people.exists():
        return None
    password = secrets.token_urlsafe(12)
    people.create_superuser("admin", password=password)
    return password
