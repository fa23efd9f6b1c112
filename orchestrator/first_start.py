"""What a new state folder needs: static files and the first admin."""

import secrets
from pathlib import Path

import django
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command

UNUSED = ["ext"]  # htmx's extensions, which import it by a name that hashing cannot follow


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
