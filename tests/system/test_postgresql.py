"""A server on PostgreSQL, which allows only so many connections."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import postgresql
from tests.conftest import lacking
from tests.system.server import REPOSITORY, Server

pytestmark = pytest.mark.slow

AT_ONCE = 60
REQUESTS = 200  # with a connection kept for each, more than PostgreSQL's hundred
FIRST_PERSON = """
import sys
from django.contrib.auth import get_user_model
from orchestrator.access import tokens
root = get_user_model().objects.create_superuser("root", password="root's password")
sys.stdout.write(tokens.issue(root, name="tests", scope="admin")[1])
"""


@pytest.fixture
def server(make_server) -> Iterator[Server]:
    """A running server whose database is a PostgreSQL of this test's own."""
    programs = postgresql.find_programs()
    if programs is None:
        lacking("PostgreSQL (apt install postgresql)")
    with postgresql.running(programs) as url:
        server: Server = make_server("sim:2x80GiB", {"DATABASE_URL": url})
        _manage(server, "migrate", "--verbosity", "0")
        server.token = _manage(server, "shell", "-v", "0", "-c", FIRST_PERSON).strip()
        yield server.start()
        server.clean_up()  # before its database goes


def _manage(server: Server, *arguments: str) -> str:
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(
        command, cwd=REPOSITORY, env=server.environment, capture_output=True, text=True, check=True
    ).stdout


def test_many_submits_at_once_share_few_connections(server):
    job = {"source": {"text": "print('on')\n"}, "pool": "default"}
    for device in server.get("/devices")["results"]:
        server.call("PATCH", f"/devices/{device['id']}", {"state": "draining"})  # what waits is cheap

    with ThreadPoolExecutor(AT_ONCE) as clients:
        answers = clients.map(lambda _: server.call("POST", "/jobs", job, timeout_s=60)[0], range(REQUESTS))
        statuses = Counter(answers)

    assert statuses == {201: REQUESTS}
