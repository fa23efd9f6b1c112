"""A service on a real server: it starts with its first request, is replaced, dies, refuses in time and sleeps."""

import http.client
import json
import signal
import time
from typing import Any

import pytest

from tests.system.server import Server, kill

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PROGRAM = """
import http.server, json, os, socketserver, sys, time
SAYS = sys.argv[1]
class Here(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/slow"):
            time.sleep(float(self.path.partition("?")[2]))
        if self.path == "/die":
            os._exit(3)
        self.answer(500 if self.path == "/wrong" else 200, {"says": SAYS, "path": self.path, "headers": dict(self.headers)})
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, {"says": SAYS, "length": len(body)})
    def answer(self, status, told):
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "berth_session=stolen")
        self.end_headers()
        self.wfile.write(body)
    def address_string(self):
        return "Berth"
class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    request_queue_size = 64
Server(os.environ["BERTH_SOCKET"], Here).serve_forever()
"""


@pytest.fixture(scope="module")
def server(short_server: Server) -> Server:
    return short_server


def begin(server: Server, name: str, says: str = "one", program: str = PROGRAM, **rules: Any) -> str:
    """Begin a service; returns a key for it."""
    job = {"command": ["python", "train.py", says], "source": {"text": program}}
    server.post("/services", {"name": name, "job": job, **rules})
    return str(server.post(f"/services/{name}/keys", {"name": "test"})["key"])


def ask(
    server: Server, name: str, path: str = "/", *, key: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, answer and headers of one request to a service."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    named = {
        "Authorization": f"Bearer {key}",
        **{each.replace("_", "-"): value for each, value in headers.items()},
    }
    try:
        connection.request("POST" if body is not None else "GET", f"/serve/{name}{path}", body, named)
        answer = connection.getresponse()
        return (
            answer.status,
            json.loads(answer.read()),
            {each.lower(): value for each, value in answer.getheaders()},
        )
    finally:
        connection.close()


def test_first_request_starts_it_and_no_credential_crosses(server: Server) -> None:
    key = begin(server, "echo", idle_s=600)
    assert server.get("/services/echo")["replicas"] == []

    status, answer, headers = ask(
        server, "echo", "/predict?x=1", key=key, Cookie="berth_session=mine; theirs=1"
    )

    assert status == 200, answer
    assert (answer["says"], answer["path"]) == ("one", "/predict?x=1")
    sent = {name.lower(): value for name, value in answer["headers"].items()}
    assert "authorization" not in sent
    assert sent.get("cookie") == "theirs=1"
    assert "set-cookie" not in headers
    assert headers["content-security-policy"].startswith("sandbox")
    assert ask(server, "echo", "/", key=key, body=b"x" * 100_000)[1]["length"] == 100_000
    assert ask(server, "echo", "/", key="berthsvc_wrong")[0] == 401
    assert ask(server, "echo", "/", key=server.token)[0] == 401
    assert ask(server, "nothing", "/", key=key)[0] == 401
    assert ask(server, "echo", "/wrong", key=key)[0] == 500
    status, answer, _ = ask(server, "echo", "/slow?5", key=key, Berth_Deadline_Ms="300")
    assert (status, answer["code"]) == (504, "late")
    server.wait_until(lambda: server.get("/services/echo")["traffic"]["late"] == 1)

    server.call("DELETE", "/services/echo/keys/test")
    server.wait_until(lambda: ask(server, "echo", "/", key=key)[0] == 401)
    server.call("DELETE", "/services/echo")


def test_a_replica_that_dies_is_begun_again_and_one_that_dies_in_a_loop_is_not(server: Server) -> None:
    key = begin(server, "mortal", min_replicas=1)
    server.wait_until(lambda: server.get("/services/mortal")["ready"] == 1)
    first = server.get("/services/mortal")["replicas"][0]["job"]
    kill(server.members(first), signal.SIGKILL)
    server.wait_for_state(first, "failed")
    assert ask(server, "mortal", key=key)[0] == 200
    assert server.get("/services/mortal")["replicas"][0]["job"] != first
    server.post("/services/mortal/stop")
    server.wait_until(lambda: ask(server, "mortal", key=key)[0] == 503)
    server.wait_until(lambda: "Stopped by" in ask(server, "mortal", key=key)[1]["detail"])

    lost = begin(server, "lost", program="raise SystemExit('no weights here')", min_replicas=1)
    server.wait_until(lambda: server.get("/services/lost")["state"] == "failed")
    assert server.get("/services/lost")["reason"].startswith("3 replicas in a row have failed")
    server.wait_until(lambda: ask(server, "lost", key=lost)[1]["code"] == "off")
    for name in ("mortal", "lost"):
        server.call("DELETE", f"/services/{name}")


def test_new_code_takes_over_once_it_answers_and_an_idle_service_sleeps(server: Server) -> None:
    key = begin(server, "digits", health_path="/health", idle_s=3, deadline_s=5)
    assert ask(server, "digits", key=key)[1]["says"] == "one"

    job = {"command": ["python", "train.py", "two"], "source": {"text": PROGRAM}}
    status, changed = server.call("PATCH", "/services/digits", {"job": job, "idle_s": 600})
    assert (status, changed["revision"]) == (200, 2)
    answers: list[str] = []
    deadline = time.monotonic() + 200
    while (not answers or answers[-1] != "two") and time.monotonic() < deadline:
        status, answer, _ = ask(server, "digits", key=key)
        assert status == 200  # nobody notices the change but by what it says
        answers.append(answer["says"])
    assert answers[0] == "one"
    assert answers[-1] == "two"

    broken = {"command": ["python", "train.py"], "source": {"text": PROGRAM}}  # it needs a word
    server.call("PATCH", "/services/digits", {"job": broken})
    server.wait_until(lambda: "newest revision have failed" in server.get("/services/digits")["reason"])
    assert ask(server, "digits", key=key)[1]["says"] == "two"

    server.call("PATCH", "/services/digits", {"job": job, "idle_s": 1})
    server.wait_until(lambda: server.get("/services/digits")["replicas"] == [])
    assert server.get("/services/digits")["state"] == "on"
    assert ask(server, "digits", key=key)[1]["says"] == "two"
    server.call("DELETE", "/services/digits")
