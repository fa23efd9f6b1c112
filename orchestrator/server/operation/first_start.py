"""What a new state folder, or one of an older version, needs before the processes start."""

import secrets
import time
from collections.abc import Callable
from pathlib import Path

import django
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from django.db import DatabaseError, connections

from orchestrator.exceptions import Unavailable

UNUSED = ["ext"]  # htmx's extensions, which import it by a name that hashing cannot follow


class NotBroughtUpToDate(Unavailable):
    """A migration failed; the database is as it was before that one."""


def prepare(tell: Callable[[str], object]) -> None:
    """Bring database and static files up to date, and make the first admin; harmless to repeat.

    Raises:
        NotBroughtUpToDate: with the sentence for the terminal (F47).
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
    """Create the first admin with a random password; None when there are people already."""
    people = get_user_model().objects
    if people.exists():
        return None
    password = secrets.token_urlsafe(12)
    people.create_superuser("admin", password=password)
    return password


def collect_static() -> None:
    """Hash and compress the static files, unless nothing changed since the last time."""
    stamp = settings.STATIC_ROOT / ".stamp"
    state = _static_state()
    if stamp.exists() and stamp.read_text() == state:
        return
    call_command("collectstatic", interactive=False, clear=True, verbosity=0, ignore_patterns=UNUSED)
    stamp.write_text(state)


def _static_state() -> str:
    """Changes with any static file, ours or a library's."""
    newest, count = 0.0, 0
    for finder in get_finders():
        for path, storage in finder.list([]):
            newest = max(newest, Path(storage.path(path)).stat().st_mtime)
            count += 1
    return f"{django.__version__} {count} {newest}"
