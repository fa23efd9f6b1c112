"""A server on PostgreSQL, which may be away, and allows only so many connections."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import postgresql
from tests.conftest import lacking
from tests.system.server import REPOSITORY, Prepared, Server
from tests.system.trainings import train

pytestmark = pytest.mark.slow

AT_ONCE = 60
REQUESTS = 200  # with a connection kept for each, more than PostgreSQL's hundred
FIRST_PERSON = """
import sys
from django.contrib.auth import get_user_model
from orchestrator.people import tokens
root = get_user_model().objects.create_superuser("root", password="root's password")
sys.stdout.write(tokens.issue(root, name="tests", scope="admin")[1])
"""


@pytest.fixture(scope="module")
def database() -> Iterator[postgresql.Cluster]:
    programs = postgresql.find_programs()
    if programs is None:
        lacking("PostgreSQL (apt install postgresql)")
    with postgresql.cluster(programs) as one:
        yield one


@pytest.fixture(scope="module")
def server(
    prepared: Prepared, tmp_path_factory: pytest.TempPathFactory, database: postgresql.Cluster
) -> Iterator[Server]:
    """A running server whose database is a PostgreSQL of this module's own."""
    home = tmp_path_factory.mktemp("postgresql") / "berth"
    server = Server.copy_of(prepared, home, "sim:2x80GiB", {"DATABASE_URL": database.url})
    try:
        _manage(server, "migrate", "--verbosity", "0")
        server.token = _manage(server, "shell", "-v", "0", "-c", FIRST_PERSON).strip()
        yield server.start()
    finally:
        server.clean_up()  # before its database goes


def _manage(server: Server, *arguments: str) -> str:
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(
        command, cwd=REPOSITORY, env=server.environment, capture_output=True, text=True, check=True
    ).stdout


def test_f41_a_training_goes_on_while_the_database_is_down_and_is_caught_up_with(server, database):
    training = train(server, 200)
    server.wait_for_line(training, "step 20 ")
    job = {"source": {"text": "print('on')\n"}}

    database.stop()
    # Each waits the pool's ten seconds for a connection, once.
    refused = server.call("POST", "/jobs", job, key="f41", timeout_s=40)
    ready = server.call("GET", "/health/ready", timeout_s=40)
    server.wait_for_line(training, "step 200 ", limit_s=60)
    database.start()
    server.wait_until(lambda: server.call("POST", "/jobs", job, key="f41", timeout_s=90)[0] == 201, 60)

    assert (refused[0], refused[1]["code"], ready[0]) == (503, "unavailable", 503)
    ended = server.wait_for_end(training)
    assert (ended["state"], ended["attempt_count"], ended["progress"]["step"]) == ("succeeded", 1, 200)
    assert server.states(training) == ["queued", "starting", "running", "succeeded"]
    assert server.get(f"/jobs/{training}/metrics?names=loss")["series"]["loss"]["total"] == 200
    taken = server.post("/jobs", job, key="f41")
    assert server.wait_for_end(taken["id"])["state"] == "succeeded"


def test_many_submits_at_once_share_few_connections(server):
    job = {"source": {"text": "print('on')\n"}, "pool": "default"}
    for device in server.get("/devices")["results"]:
        server.call("PATCH", f"/devices/{device['id']}", {"state": "draining"})  # what waits is cheap

    with ThreadPoolExecutor(AT_ONCE) as clients:
        answers = clients.map(lambda _: server.call("POST", "/jobs", job, timeout_s=60)[0], range(REQUESTS))
        statuses = Counter(answers)

    assert statuses == {201: REQUESTS}
