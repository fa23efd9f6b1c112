"""Berth's settings on a state folder that is thrown away: nothing of the person who runs the tests is touched."""

import atexit
import os
import shutil
import tempfile

# Each process of pytest-xdist loads this by itself, so each has a folder of its own.
_root = tempfile.mkdtemp(prefix="berth-tests-")
atexit.register(shutil.rmtree, _root, ignore_errors=True)
os.environ["BERTH_HOME"] = f"{_root}/home"
for _name in (
    "BERTH_REDIS_URL",
    "BERTH_DEVICES",
    "BERTH_CPU_SLOTS",
    "BERTH_PORT",
    "BERTH_BIND",
    "BERTH_DEBUG",
):
    os.environ.pop(_name, None)

from orchestrator.server.settings import *  # noqa: E402, F403  # after the environment is set
from orchestrator.server.settings import DATABASES, HOME, STORAGES  # noqa: E402  # likewise

if "sqlite3" in str(DATABASES["default"]["ENGINE"]):
    # On disk, as in production: an SQLite database in memory locks in another way.
    DATABASES["default"]["TEST"] = {"NAME": str(HOME.root / "test.sqlite3")}
# Unhashed: pages are tested without collecting static files first.
STORAGES = {
    **STORAGES,
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # fast; these passwords guard nothing
