"""A federation over two real servers: sites here and there, lines that are cut, and a server that sees no update."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.system.server import Server, kill
from tests.system.test_federated import SCRIPT
from training.federated import masking
from training.federated import site as sites
from training.federated.messages import Message, decode
from training.federated.site import Local
from training.recipes import named

pytestmark = pytest.mark.slow

ASKED = {
    "name": "clinics",
    "model": "train.py:build_model",
    "evaluate_on": "train.py:evaluation_data",
    "sites": 2,
    "remote_sites": 3,
    "rounds": 100_000,  # it is stopped once everything has happened
    "learning_rate": 0.2,
    "patience_s": 120,
    "job": {"source": {"text": SCRIPT}},
}


class Line:
    """A TCP line to a server that keeps what it carries, and cuts connections while it is told to."""

    def __init__(self, port: int) -> None:
        self._to, self._listener = port, socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.sent: list[bytearray] = []  # to the server, by connection
        self.answered: list[bytearray] = []
        self.to_cut = 0  # connections
        self.cut = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        sent, answered = bytearray(), bytearray()
        self.sent.append(sent)
        self.answered.append(answered)
        cut = ""
        if self.to_cut > 0:
            self.to_cut, self.cut = self.to_cut - 1, self.cut + 1
            cut = "answer" if self.cut % 2 else "request"
        with client, socket.create_connection(("127.0.0.1", self._to)) as server:
            back = threading.Thread(
                target=_copy, args=(server, client, answered, cut == "answer"), daemon=True
            )
            back.start()
            while chunk := _received(client):
                sent += chunk
                if cut == "request":
                    server.sendall(chunk[: len(chunk) // 2])
                    return
                server.sendall(chunk)
            back.join(30)

    def messages(self) -> list[Message]:
        """What sites sent, put together from its parts."""
        parts: dict[bytes, dict[int, bytes]] = {}
        for raw in map(bytes, list(self.sent)):
            head, _, body = raw.partition(b"\r\n\r\n")
            if head.startswith(b"PUT ") and body:
                path, _, query = head.split(b" ", 2)[1].partition(b"?")
                offset = int(query.partition(b"offset=")[2].partition(b"&")[0])
                known = parts.setdefault(path, {})
                known[offset] = max(known.get(offset, b""), body, key=len)
        return [decode(b"".join(part for _, part in sorted(each.items()))) for each in parts.values()]

    def weights(self) -> list[bytes]:
        """The weights that sites got."""
        found = []
        for raw in map(bytes, list(self.answered)):
            head, _, body = raw.partition(b"\r\n\r\n")
            if (
                b"x-message-id" not in head.lower()
                or f"content-length: {len(body)}".encode() not in head.lower()
            ):
                continue  # of another kind, or cut
            if (message := decode(body)).kind == "train":
                found.append(message.data)
        return found


def _copy(source: socket.socket, target: socket.socket, kept: bytearray, is_cut: bool) -> None:
    while chunk := _received(source):
        kept += chunk
        if is_cut:
            break
        try:
            target.sendall(chunk)
        except OSError:
            return
    try:
        target.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(1 << 16)
    except OSError:
        return b""


@pytest.fixture
def line_of() -> Iterator[object]:
    lines: list[Line] = []

    def make(port: int) -> Line:
        lines.append(Line(port))
        return lines[-1]

    yield make
    for line in lines:
        line.close()


@pytest.mark.timeout(900)
def test_sites_at_another_berth_train_along_and_their_server_sees_no_update(make_server, line_of, tmp_path):
    here: Server = make_server("cpu:3").start()
    there: Server = make_server("cpu:3").start()
    line = line_of(here.port)
    began = here.post("/federated", ASKED)
    path = f"/federated/{began['id']}"
    jobs = {}
    for name in ("kept", "stopped", "revoked"):
        link = here.post(f"{path}/invitations", {"name": name})["link"].replace(
            str(here.port), str(line.port)
        )
        body = {"invitation": link, "model": "train.py:build_model", "job": {"source": {"text": SCRIPT}}}
        jobs[name] = there.post("/federated/join", body)["id"]

    def rounds() -> list[dict[str, Any]]:
        return list(here.get(path)["report"]["rounds"])

    def wait_for_rounds(count: int, sites: int) -> None:
        """Wait for some further rounds of so many sites."""
        begin = len(rounds())
        here.wait_until(lambda: [each["sites"] for each in rounds()[begin:]].count(sites) >= count)

    here.wait_until(lambda: len(rounds()) >= 2)
    assert [each["sites"] for each in rounds()[:2]] == [5, 5]

    line.to_cut = 12  # the requests of some, the answers of others
    here.wait_until(lambda: line.cut >= 12)
    wait_for_rounds(2, 5)

    kill(there.members(jobs["kept"]))
    here.wait_until(lambda: "started again" in str(here.get(path)["report"]["lost"]))
    wait_for_rounds(1, 5)
    assert here.get(path)["sites"][2]["part"] == "takes_part"

    there.post(f"/jobs/{jobs['stopped']}/cancel", {})
    here.wait_until(lambda: "its job was stopped" in here.get(path)["sites"][3]["left_out"])
    wait_for_rounds(1, 4)

    status, _ = here.call("DELETE", f"{path}/invitations/revoked")
    assert status == 204
    ended = there.wait_for_end(jobs["revoked"])
    assert ended["state"] == "failed"
    assert "The invitation of the site revoked was revoked." in there.log(
        jobs["revoked"], len(there.attempts(jobs["revoked"]))
    )

    wait_for_rounds(1, 3)

    here.post(f"{path}/stop")
    told = here.get(path)
    assert told["report"]["rounds"][-1]["metrics"]["accuracy"] > 0.85
    assert [each["part"] for each in told["sites"][3:]] == ["left_out", "left_out"]
    assert there.wait_for_end(jobs["kept"])["state"] == "succeeded"
    assert "is stopped" in there.log(jobs["kept"], len(there.attempts(jobs["kept"])))
    _check_that_no_update_was_sent(line, tmp_path)


def _check_that_no_update_was_sent(line: Line, tmp_path: Path) -> None:
    """Trains as the sites did, from the weights that they got, and looks for the updates in all that was sent."""
    code = tmp_path / "train.py"
    code.write_text(SCRIPT.replace("time.sleep", "float"))
    messages, sent = line.messages(), b"".join(map(bytes, line.sent))
    assert line.weights()
    masked = [message for message in messages if message.kind == "mask"]
    assert len(masked) > 10
    assert all(not message.data for message in messages if message.kind != "mask")
    for message in masked:
        levels = np.frombuffer(message.data, np.uint64).view(np.int64).astype(np.float64)
        assert np.median(np.abs(levels)) > 2**58  # those of plain updates are below 2^40
    for number in (2, 3, 4):
        local = Local(f"{code}:build_model", f"{code}:site_data", None, sites=5, learning_rate=0.2)
        model = named.build_model(local.model)
        for weights in set(line.weights()):
            start = torch.frombuffer(bytearray(weights), dtype=torch.float32)
            update, count = sites.train(model, sites.site_data(local, number), start, local)
            weighted = torch.cat([update.double() * count, torch.tensor([float(count)])])
            plain = masking.to_levels(weighted, 5)
            for raw in (update.numpy().tobytes(), weighted.numpy().tobytes(), plain.tobytes()):
                assert raw[: len(raw) // 2] not in sent
