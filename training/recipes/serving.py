"""Answers requests with a model: JSON over HTTP on the unix socket of a service's replica.

``POST`` a batch of inputs, as a list or as ``{"inputs": [...]}``; the answer is ``{"outputs": [...]}``.  A model with
several inputs gets ``{"inputs": {"name of the parameter": [...], ...}}``.
"""

import http.server
import inspect
import json
import os
import socketserver
import sys
import threading
from http import HTTPStatus
from typing import Any

import torch
from torch import Tensor, nn

from training.recipes.measure import answer, device_of
from training.recipes.named import RecipeError

HEALTH_PATH = "/health"
LARGEST_BYTES = 256 << 20


class NotAnswerable(Exception):
    """A request that the model cannot answer; the sentence says what to change."""


class Answerer:
    """A model that answers batches of inputs, one at a time."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model.eval()
        self._device = device_of(model)
        # Whole numbers are tokens where something embeds them, else values that JSON wrote without a point.
        self._reads_tokens = any(isinstance(each, nn.Embedding) for each in model.modules())
        self._names = list(inspect.signature(model.forward).parameters)
        self._lock = threading.Lock()

    def __call__(self, body: bytes) -> bytes:
        """Answer the body of a request.

        Raises:
            NotAnswerable: it is no batch, or not one of this model's.
        """
        inputs = tuple(self._tensor(each) for each in self._inputs(body))
        try:
            with self._lock, torch.inference_mode():
                outputs = answer(self.model, inputs).float().cpu()
        except RecipeError as error:
            raise NotAnswerable(str(error)) from error
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            shapes = ", ".join(str(list(each.shape)) for each in inputs)
            first = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            raise NotAnswerable(f"The model cannot take inputs of shape {shapes}: {first}") from error
        if not torch.isfinite(outputs).all():
            raise NotAnswerable(
                "The model answered NaN or infinity for these inputs, which JSON cannot hold."
            )
        return json.dumps({"outputs": outputs.tolist()}).encode()

    def _inputs(self, body: bytes) -> list[Any]:
        try:
            asked = json.loads(body)
        except ValueError as error:
            raise NotAnswerable(f"The body is no JSON ({error}).") from error
        if isinstance(asked, dict):
            asked = asked.get("inputs")
        if isinstance(asked, dict):
            first = self._names[: len(asked)]
            if not asked or set(asked) != set(first):
                raise NotAnswerable(f"Give the inputs {', '.join(self._names)} by name, from the first on.")
            return [asked[name] for name in first]
        if not isinstance(asked, list) or not asked:
            raise NotAnswerable('Send a batch of inputs as JSON: a list, or {"inputs": [...]}.')
        return [asked]

    def _tensor(self, values: Any) -> Tensor:
        try:
            made = torch.tensor(values)
        except (TypeError, ValueError, RuntimeError) as error:
            raise NotAnswerable(f"The inputs are no even batch of numbers: {error}.") from error
        made = made if made.is_floating_point() or self._reads_tokens else made.float()
        return made.to(self._device)


class Door(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """The socket; each connection has a thread, and the model answers one of them at a time."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path: str, answerer: Answerer) -> None:
        super().__init__(path, _Request)
        self.answerer = answerer


class _Request(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Door

    def do_GET(self) -> None:
        if self.path.partition("?")[0] == HEALTH_PATH:
            self._send(HTTPStatus.OK, b'{"ready": true}')
        else:
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "Send inputs by POST, as JSON.")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > LARGEST_BYTES:
            self.close_connection = True  # its body stays unread
            self._refuse(HTTPStatus.LENGTH_REQUIRED, f"Say Content-Length, at most {LARGEST_BYTES} bytes.")
            return
        try:
            self._send(HTTPStatus.OK, self.server.answerer(self.rfile.read(int(length))))
        except NotAnswerable as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        self._send(status, json.dumps({"detail": sentence}).encode())

    def _send(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "Berth"  # a unix socket has no address

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Leave answered requests out of the log: Berth counts them."""


def serve(model: nn.Module) -> None:
    """Answer requests until the process is stopped.

    Raises:
        RecipeError: this is no replica of a service.
    """
    path = os.environ.get("BERTH_SOCKET")
    if not path:
        raise RecipeError("Only a replica of a service serves a model: BERTH_SOCKET names no socket.")
    with Door(path, Answerer(model)) as door:
        sys.stdout.write("The model answers.\n")
        sys.stdout.flush()
        door.serve_forever()
