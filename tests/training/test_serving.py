"""A served model answers JSON over its socket, and says what is wrong with a request."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.training.recipe_models import SOURCES, train_owner, write_owner
from training.recipes import named, serving
from training.recipes.named import RecipeError


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Path]:
    """The socket of a model of two rows and one output."""
    torch.manual_seed(0)
    path = tmp_path / "s"
    with serving.Door(str(path), serving.Answerer(nn.Linear(2, 1))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield path
        server.shutdown()
        thread.join()


def ask(path: Path, body: bytes | None, *, method: str = "POST", to: str = "/") -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("service")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    try:
        connection.request(method, to, body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_a_batch_is_answered_and_health_says_ready(door: Path) -> None:
    status, answer = ask(door, b"[[1, 2], [3, 4]]")

    assert status == 200
    assert len(answer["outputs"]) == 2
    assert ask(door, None, method="GET", to="/health") == (200, {"ready": True})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no JSON"),
        (b"{}", "Send a batch"),
        (b"[[1], [2, 3]]", "no even batch"),
        (b"[[1, 2, 3]]", "cannot take inputs of shape [1, 3]"),
        (b'{"inputs": {"other": [1]}}', "Give the inputs"),
        (b"[[1e39, 1e39]]", "NaN or infinity"),
    ],
)
def test_what_the_model_cannot_answer_is_refused_with_a_sentence(door: Path, body: bytes, words: str) -> None:
    status, answer = ask(door, body)

    assert status == 400
    assert words in answer["detail"]


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_a_served_model_answers_as_it_does_in_the_script(name: str, tmp_path: Path) -> None:
    code = write_owner(name, tmp_path).rename(tmp_path / f"{name}_served.py")
    model = train_owner(code, tmp_path / "model.pt")
    inputs = named.read_samples(str(code), 4).first(3)[0][0]

    answered = json.loads(serving.Answerer(model)(json.dumps({"inputs": inputs.tolist()}).encode()))

    assert torch.allclose(torch.tensor(answered["outputs"]), model(inputs), atol=1e-5)


def test_a_model_outside_of_a_service_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BERTH_SOCKET", raising=False)

    with pytest.raises(RecipeError, match="replica of a service"):
        serving.serve(nn.Linear(1, 1))
