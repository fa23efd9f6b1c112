"""Sessions as they are launched: what is executed, where it listens, and a real one in its sandbox."""

import dataclasses
import shutil
import tempfile
from ast import literal_eval
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.jobs.launch import launcher
from orchestrator.models import Attempt, Job, JobState
from orchestrator.store.bundles import bundles
from orchestrator.store.layout import Home
from orchestrator.supervisor.protocol.records import read_record
from tests.waiting import wait_until

PROGRAM = b"""
import http.server, os, socketserver
class Here(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{self.path} {os.environ['BERTH_BASE_PATH']}".encode())
    def address_string(self):
        return "the proxy"
class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    pass
Server(os.environ["BERTH_SOCKET"], Here).serve_forever()
"""


@pytest.fixture
def short_home(home: Home, settings) -> Iterator[Home]:
    """A state folder whose sockets the kernel takes: those of pytest are too deep."""
    root = Path(tempfile.mkdtemp(prefix="b-"))
    settings.HOME = Home(root)
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, home=settings.HOME)
    settings.HOME.uploads.mkdir()
    yield settings.HOME
    shutil.rmtree(root)


@pytest.fixture
def placed(short_home, make_attempt, make_job) -> Callable[..., Attempt]:
    """A session that waits for its launch; keywords are fields of its spec."""

    def make(**spec: Any) -> Attempt:
        bundle = bundles.store_script(short_home.bundles, "train.py", PROGRAM).sha256
        attempt: Attempt = make_attempt(make_job(bundle=bundle, spec={"kind": "session", **spec}))
        return attempt

    return make


def record_of(attempt: Attempt) -> dict[str, Any]:
    launcher.prepare(Job.objects.select_related("pool").get(pk=attempt.job_id), attempt)
    return read_record(launcher.folder_of(attempt).launch) or {}


def test_jupyter_listens_on_the_socket_and_asks_nobody_for_a_password(placed):
    attempt = placed(program="jupyter", args=["--LabApp.default_url=/lab/tree/a.ipynb"])

    record = record_of(attempt)

    folder = launcher.folder_of(attempt)
    assert record["starts_as"] == "command"
    assert record["args"][:2] == ["-m", "jupyterlab"]
    assert f"--ServerApp.sock={folder.session_socket}" in record["args"]
    assert f"--ServerApp.base_url=/s/{attempt.job_id}/" in record["args"]
    assert record["args"][-1] == "--LabApp.default_url=/lab/tree/a.ipynb"
    assert str(folder.session) in record["writable"]
    assert folder.session.stat().st_mode & 0o777 == 0o700


def test_jupyter_asks_no_node_whether_its_pages_need_a_build_nor_npm_for_language_servers(placed):
    args = record_of(placed(program="jupyter"))["args"]

    tornado = next(each for each in args if each.startswith("--ServerApp.tornado_settings="))
    assert literal_eval(tornado.partition("=")[2]) == {
        "page_config_data": {"buildAvailable": False, "buildCheck": False}
    }
    roots = [
        each.partition("=")[2] for each in args if each.startswith("--LanguageServerManager.node_roots=")
    ]
    assert roots[0] == "."
    assert "/usr/lib" in roots


def test_other_jobs_get_no_socket(make_attempt, make_job, store_script):
    attempt = make_attempt(make_job(bundle=store_script(PROGRAM)))

    record = record_of(attempt)

    assert "BERTH_SOCKET" not in record["env"]
    assert not launcher.folder_of(attempt).session.exists()


def test_session_whose_socket_would_have_too_long_a_path_fails_with_what_to_do(
    home, make_attempt, make_job, settings
):
    settings.HOME = Home(home.root / ("x" * 60))
    bundle = bundles.store_script(settings.HOME.bundles, "train.py", PROGRAM).sha256
    attempt = make_attempt(make_job(bundle=bundle, spec={"kind": "session"}))

    launcher.start(attempt)

    attempt.job.refresh_from_db()
    assert attempt.job.state == JobState.FAILED
    assert "shorter BERTH_HOME" in attempt.job.exit_detail


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_session_in_its_sandbox_is_reached_through_the_proxy_until_it_is_stopped(ada, placed, enter):
    attempt = placed(command=["python", "train.py"])
    folder = launcher.folder_of(attempt)

    launcher.start(attempt)
    wait_until(folder.session_socket.is_socket, message=lambda: folder.log(0).read_text())
    job = Job.objects.get(pk=attempt.job_id)
    answer = enter(ada, job).get("lab")

    assert answer.text == f"/s/{job.pk}/lab /s/{job.pk}/"

    assert launcher.stop(attempt, reason="cancel", grace_s=1)
    wait_until(folder.exit.exists)
    assert (read_record(folder.exit) or {})["kind"] == "cancelled"
