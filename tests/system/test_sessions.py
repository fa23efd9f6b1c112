"""A real session that does nothing: it gives its devices back, and goes on in its folder once it is woken."""

from pathlib import Path

import pytest

from tests.system.server import Server
from tests.system.test_shells import berth

pytestmark = pytest.mark.slow

# As JupyterLab does, it ends by itself, without an error, when it is asked to.
PROGRAM = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with open("notes", "a") as notes:
    notes.write("began\\n")
print("begins", open("notes").read().count("began"), flush=True)
while True:
    time.sleep(3600)
"""


@pytest.fixture
def server(short_server: Server) -> Server:
    """Sessions go to sleep as soon as they were seen to do nothing."""
    rules = {"idle_after_s": 1, "idle_stop_after_s": 2}
    assert short_server.call("PATCH", "/pools/default", rules)[0] == 200
    return short_server


def test_session_sleeps_and_wakes_in_its_folder(server: Server, tmp_path: Path) -> None:
    session = server.submit(PROGRAM, kind="session", command=["python", "train.py"])

    job = server.wait_for_state(session, "held")

    assert "gave its devices back, as pool default asks" in job["reason"]
    assert not any(device["holders"] for device in server.get("/devices")["results"])
    listed = server.get("/sessions")["results"][0]
    assert (listed["id"], listed["asleep"]) == (session, True)

    answer = berth(server, tmp_path, "session", "wake", session)

    assert answer.returncode == 0, answer.stderr
    server.wait_for_line(session, "begins 2", attempt=2)
    server.post(f"/sessions/{session}/stop")
    assert server.wait_for_end(session)["state"] == "cancelled"
