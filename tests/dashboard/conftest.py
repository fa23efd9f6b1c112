"""Readers of the pages, readings on disk, and sockets to the feed."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from orchestrator.live import NowReadings, write_now
from orchestrator.spec import GIB


@pytest.fixture
def reader(home) -> Callable[[User], Client]:
    """A browser in which somebody is signed in."""

    def make(user: User) -> Client:
        client = Client()
        client.force_login(user)
        return client

    return make


@pytest.fixture
def write_readings(home) -> Callable[..., None]:
    """Write what the agent would: one entry for each device id, with more fields by id."""

    def write(*ids: str, seq: int = 1, age_s: float = 0, stream: str = "s", **by_id: dict[str, Any]) -> None:
        entries = [
            {
                "id": device,
                "index": number,
                "kind": "sim",
                "label": f"simulated GPU {number}",
                "name": "Simulated GPU",
                "used_bytes": GIB,
                "total_bytes": 80 * GIB,
                "stale": False,
                "processes": [],
                "foreign_bytes": 0,
                "holders": [],
                **by_id.get(device.replace("-", "_"), {}),
            }
            for number, device in enumerate(ids)
        ]
        write_now(NowReadings(seq, time.time() - age_s, stream, None, False, {"cpu_percent": 31.0}, entries))

    return write
