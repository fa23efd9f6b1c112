"""A site talks to another Berth over lines that fail: what it sends again, when it gives up, and how it says farewell."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from training.federated import remote
from training.federated.channels import Gone
from training.federated.messages import Message, decode, encode
from training.federated.remote import Door, Refused, RemoteChannel, Unreachable
from training.recipes.named import RecipeError

Answer = tuple[int, bytes, dict[str, str]]


class Berth:
    """The other end, as little as a site needs; ``answer`` may take its turn first."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.secrets: set[str] = set()
        self.parts: dict[str, bytearray] = {}
        self.whole: list[bytes] = []
        self.to_site: list[bytes] = []
        self.answer: Callable[[str, str], Answer | None] = lambda _, __: None
        berth = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply(berth.get(self.path))

            def do_PUT(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                self._reply(berth.put(self.path, data))

            def _reply(self, usual: Answer) -> None:
                berth.requests.append((self.command, self.path))
                berth.secrets.add(self.headers["Authorization"])
                status, body, headers = berth.answer(self.command, self.path) or usual
                if status == 0:  # the line is cut after the request was carried out
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing is printed."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.link = f"http://127.0.0.1:{self._server.server_port}/federated#bsite_secret"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def get(self, path: str) -> Answer:
        parts = urlsplit(path)
        if parts.path == "/api/v1/rounds":
            return 200, json.dumps(SETTINGS).encode(), {}
        done = parse_qs(parts.query).get("done", [""])[0]
        if self.to_site and done == str(len(self.to_site)):
            self.to_site.pop(0)
        if not self.to_site:
            return 204, b"", {}
        return 200, self.to_site[0], {"X-Message-Id": str(len(self.to_site))}

    def put(self, path: str, data: bytes) -> Answer:
        parts = urlsplit(path)
        query = {key: int(values[0]) for key, values in parse_qs(parts.query).items()}
        known = self.parts.setdefault(parts.path, bytearray())
        before = len(known)
        known[query["offset"] : query["offset"] + len(data)] = data
        if len(known) == query["size"] > before:
            self.whole.append(bytes(known))
        return 200, json.dumps({"received_bytes": len(known)}).encode(), {}


SETTINGS = {
    "protocol": 1, "federation": "clinics", "name": "clinic-b", "number": 2, "sites": 4, "rounds": 3, "epochs": 1,
    "batch_size": 8, "learning_rate": 0.1, "proximal": 0.0, "clip": None, "noise": None, "delta": 1e-5,
    "patience_s": 20.0, "seed": 0,
}  # fmt: skip
NO = json.dumps({"detail": "The invitation of the site clinic-b was revoked."}).encode()


@pytest.fixture
def berth() -> Iterator[Berth]:
    made = Berth()
    yield made
    made.close()


def failing(times: int, answer: Answer) -> Callable[[str, str], Answer | None]:
    left = [times]

    def fail(_: str, __: str) -> Answer | None:
        left[0] -= 1
        return answer if left[0] >= 0 else None

    return fail


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param((0, b"", {}), id="the answer is lost"),
        pytest.param((502, b"bad gateway", {}), id="a proxy without its server"),
        pytest.param((429, b"{}", {}), id="too fast"),
        pytest.param((409, b"{}", {}), id="parts that are missing"),
    ],
)
def test_a_message_is_sent_again_under_its_id_and_arrives_once(berth: Berth, answer: Answer) -> None:
    channel = RemoteChannel(Door(berth.link, patience_s=20))
    berth.answer = failing(2, answer)

    channel.send(Message("mask", {"n": 1}, bytes(range(256)) * 40_000))

    assert [decode(each).data for each in berth.whole] == [bytes(range(256)) * 40_000]
    assert len(berth.parts) == 1
    assert len(berth.requests) == 5  # three parts, and two that failed
    assert berth.secrets == {"Token bsite_secret"}


def test_messages_come_in_order_and_once_though_answers_are_lost(berth: Berth) -> None:
    channel = RemoteChannel(Door(berth.link, patience_s=20))
    berth.to_site = [encode(Message("m", {"n": number})) for number in range(3)]
    berth.answer = failing(1, (0, b"", {}))

    found: list[int] = []
    while len(found) < 3:
        if (message := channel.receive()) is not None:
            found.append(message.facts["n"])
            berth.answer = failing(1, (0, b"", {}))

    assert found == [0, 1, 2]
    assert channel.receive() is None


def test_a_site_that_waits_asks_about_once_a_second(berth: Berth) -> None:
    channel = RemoteChannel(Door(berth.link))
    began_s = time.monotonic()
    while time.monotonic() < began_s + 3:
        assert channel.receive() is None
        time.sleep(0.01)

    assert len(berth.requests) < 20


def test_a_refusal_is_told_as_it_stands_and_an_end_is_no_error(berth: Berth) -> None:
    channel = RemoteChannel(Door(berth.link, patience_s=20))
    berth.answer = lambda _, __: (403, NO, {})
    with pytest.raises(Refused, match=r"127.0.0.1:\d+: The invitation of the site clinic-b was revoked\."):
        channel.send(Message("hello", {}))
    berth.answer = lambda _, __: (410, b'{"detail": "The federation clinics is ended."}', {})
    with pytest.raises(Gone, match=r"The federation clinics is ended\."):
        channel.receive()


def test_the_secret_follows_no_redirect(berth: Berth) -> None:
    berth.answer = lambda _, path: (302, b"", {"Location": "/elsewhere"}) if "rounds" in path else None

    with pytest.raises(Refused, match="answered 302"):
        Door(berth.link).settings()
    assert [path for _, path in berth.requests] == ["/api/v1/rounds"]


def test_no_proxy_sees_an_invitation_to_this_machine(berth: Berth, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Berth()
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, proxy.link.partition("/federated")[0])
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)

    settings = Door(berth.link, patience_s=2).settings()
    proxy.close()

    assert settings["name"] == "clinic-b"
    assert not proxy.requests


@pytest.mark.parametrize("length", ["-1", "many", "²", "9" * 5_000, "5000", "1001"])
def test_an_answer_is_bounded_whatever_length_it_tells(
    berth: Berth, monkeypatch: pytest.MonkeyPatch, length: str
) -> None:
    monkeypatch.setattr(remote, "MOST_BYTES", 1_000)
    berth.answer = lambda _, __: (200, b"x" * 5_000, {"Content-Length": length})

    with pytest.raises(Gone, match=r"more than 1,000 bytes"):
        Door(berth.link, patience_s=1).settings()


def test_a_berth_that_does_not_answer_is_given_up_after_the_patience(berth: Berth) -> None:
    berth.close()
    began_s = time.monotonic()

    with pytest.raises(Unreachable, match="did not answer for 1 s"):
        Door(berth.link, patience_s=1).settings()
    assert time.monotonic() - began_s < 10


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("http://berth.example.org/federated#bsite_x", "has no HTTPS"),
        ("https://berth.example.org/federated", "no link"),
        ("file:///etc/passwd#x", "no link"),
    ],
)
def test_links_that_would_show_the_secret_are_refused(link: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        Door(link)


def test_an_older_berth_is_told_apart(berth: Berth) -> None:
    older = json.dumps({**SETTINGS, "protocol": 7}).encode()
    berth.answer = lambda _, __: (200, older, {})

    with pytest.raises(RecipeError, match="speaks version 7 of the rounds, and this Berth 1"):
        remote.join(berth.link, "x", "x", None)


def test_a_site_that_is_stopped_says_farewell_and_one_that_fails_does_too(
    berth: Berth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "farewell_owner.py"
    code.write_text(
        "import os, signal\nfrom torch import nn\n"
        "def build_model():\n    return nn.Linear(1, 1)\n"
        "def site_data(number, sites):\n    os.kill(os.getpid(), signal.SIGTERM)\n    return []\n"
        "def bad_data(number, sites):\n    raise ValueError('no patients')\n"
    )
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        remote.join(berth.link, str(code), f"{code}:site_data", None)
    with pytest.raises(ValueError, match="no patients"):
        remote.join(berth.link, str(code), f"{code}:bad_data", None)

    assert ended.value.code == 143
    said = [decode(each) for each in berth.whole]
    assert [each.kind for each in said] == ["farewell", "farewell"]
    assert [each.facts["why"] for each in said] == ["its job was stopped", "its job has failed"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_site_is_heard_while_it_loads_its_data(berth: Berth, tmp_path: Path) -> None:
    code, heard = tmp_path / "slow_owner.py", tmp_path / "heard"
    code.write_text(
        "import os, time, signal\nfrom torch import nn\n"
        "def build_model():\n    return nn.Linear(1, 1)\n"
        "def site_data(number, sites):\n"
        "    until = time.monotonic() + 20\n"
        f"    while not os.path.exists({str(heard)!r}):\n"
        "        if time.monotonic() > until:\n            raise ValueError('the site fell silent')\n"
        "        time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n    return []\n"
    )

    def answer(_: str, path: str) -> Answer | None:
        if len([each for each in berth.requests if each[1] == path]) == 4:
            heard.touch()
        if path != "/api/v1/rounds":
            return None
        return 200, json.dumps({**SETTINGS, "patience_s": 2.0}).encode(), {}

    berth.answer = answer
    with pytest.raises(SystemExit):
        remote.join(berth.link, str(code), f"{code}:site_data", None)

    assert [decode(each).facts["why"] for each in berth.whole] == ["its job was stopped"]


def test_a_farewell_takes_at_most_five_seconds(berth: Berth, monkeypatch: pytest.MonkeyPatch) -> None:
    channel = RemoteChannel(Door(berth.link))
    berth.answer = lambda _, __: (503, b"", {})
    monkeypatch.setattr(remote, "FAREWELL_S", 1.0)
    began_s = time.monotonic()

    remote._say_farewell(channel, "run", "its job was stopped")

    assert time.monotonic() - began_s < 5


def test_the_invitation_leaves_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDERATION_INVITATION_1", "https://x/federated#y")

    assert remote.invitation("FEDERATION_INVITATION_1") == "https://x/federated#y"
    with pytest.raises(RecipeError, match="berth federated join"):
        remote.invitation("FEDERATION_INVITATION_1")
