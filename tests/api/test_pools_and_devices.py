"""Pools and devices: what they show, and what operators change."""

import sys
import time
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from orchestrator.live import readings
from orchestrator.models import AdminState, Health, JobState, Pool
from orchestrator.store.metrics.device_history import DeviceHistory


def reading(index: int = 0, **fields: object) -> dict[str, object]:
    return {
        "id": f"sim-{index}",
        "index": index,
        "kind": "sim",
        "label": f"simulated GPU {index}",
        "name": "Simulated GPU",
        "used_bytes": 2**30,
        "total_bytes": 80 * 2**30,
        "utilization_percent": 97.0,
        "stale": False,
        "foreign_bytes": 5,
        "processes": [{"pid": 7, "used_bytes": 5, "user": "carl", "command": "python", "job": None}],
        "holders": [],
        **fields,
    }


@pytest.fixture
def write_readings(home):
    def write(*devices: Any, age_s: float = 0.0) -> None:
        now = replace(
            readings.NOTHING_READ, seq=1, taken_at=time.time() - age_s, stream="s", devices=list(devices)
        )
        readings.write_now(now)

    return write


def test_a_device_shows_its_reading_and_strangers_on_it(client_of, ada, make_device, write_readings):
    make_device(0)
    write_readings(reading())

    device = client_of(ada).send("GET", "/devices/sim-0").json()

    assert (device["label"], device["usable"], device["holders"]) == ("simulated GPU 0", True, [])
    assert device["reading"]["utilization_percent"] == 97.0
    assert device["reading"]["temperature_c"] is None
    assert device["reading"]["stale"] is False
    assert device["reading"]["processes"][0]["user"] == "carl"


def test_old_readings_are_called_stale_and_missing_ones_null(client_of, ada, make_device, write_readings):
    make_device(0)
    make_device(1)
    write_readings(reading(0), age_s=10)

    first, second = client_of(ada).send("GET", "/devices").json()["results"]

    assert first["reading"]["stale"] is True
    assert second["reading"] is None


def test_everybody_sees_who_holds_a_device_and_nothing_more(client_of, bob, make_attempt, make_device):
    attempt = make_attempt(state=JobState.RUNNING, devices=[make_device(0)], spec={"env": {"KEY": "secret"}})

    answer = client_of(bob).send("GET", "/devices/sim-0")

    [holder] = answer.json()["holders"]
    assert (holder["job"], holder["owner"], holder["name"]) == (str(attempt.job_id), "ada", "digits")
    assert b"secret" not in answer.content


def test_a_wall_of_devices_costs_a_fixed_number_of_queries(client_of, ada, make_attempt, make_device):
    client = client_of(ada)
    client.send("GET", "/devices")

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            client.send("GET", "/devices")
        return len(captured)

    make_attempt(state=JobState.RUNNING, devices=[make_device(0)])
    few = queries()
    for index in range(1, 9):
        make_attempt(state=JobState.RUNNING, devices=[make_device(index)])

    assert queries() == few <= 6


def test_an_operator_drains_a_device(client_of, root, make_device):
    device = make_device(0)

    answer = client_of(root).send("PATCH", "/devices/sim-0", {"state": "draining"})

    assert (answer.json()["state"], answer.json()["usable"]) == ("draining", False)
    device.refresh_from_db()
    assert device.admin_state == AdminState.DRAINING


@pytest.mark.parametrize(
    "body", [{}, {"state": "gone"}, {"state": None}, {"state": "enabled", "health": "ok"}]
)
def test_b37_changes_of_a_device_that_are_none_are_400(body, client_of, root, make_device):
    make_device(0, health=Health.FENCED)

    answer = client_of(root).send("PATCH", "/devices/sim-0", body)

    assert answer.status_code == 400
    assert answer.json()["errors"]


def test_an_unknown_field_names_the_accepted_ones(client_of, root, make_device):
    make_device(0)

    answer = client_of(root).send("PATCH", "/devices/sim-0", {"state": "enabled", "health": "ok"})

    assert answer.json()["errors"] == {"health": ["unknown field; accepted are state, reason, until, pool"]}


def test_the_history_of_a_device_is_down_sampled(client_of, ada, make_device, home):
    make_device(0)
    history = DeviceHistory(home.device_history)
    for second in range(0, 600, 2):
        history.append(
            "sim-0", 1_000_000.0 + second, memory_used_bytes=second, power_w=300 if second == 300 else 60
        )
    history.flush()

    answer = client_of(ada).send("GET", "/devices/sim-0/history?from=1000000&to=1000600&max_points=20").json()

    assert max(answer["series"]["power_w"]["y_max"]) == 300
    assert len(answer["series"]["memory_used_bytes"]["x"]) <= 20
    assert "temperature_c" not in answer["series"]
    assert (answer["from"], answer["to"]) == ("1970-01-12T13:46:40Z", "1970-01-12T13:56:40Z")
    written = f"from={answer['from']}&to={answer['to']}&max_points=20"
    assert client_of(ada).send("GET", f"/devices/sim-0/history?{written}").json() == answer
    assert client_of(ada).send("GET", "/devices/sim-9/history").status_code == 404


@pytest.mark.parametrize(
    "query",
    [
        "from=nan",
        "from=-1",
        "to=1e300",
        "to=yesterday",
        "from=2026-11-21T07:00:00",
        "max_points=0",
        "hours=1",
    ],
)
def test_windows_of_a_history_that_are_none_are_400(query, client_of, ada, make_device):
    make_device(0)

    assert client_of(ada).send("GET", f"/devices/sim-0/history?{query}").status_code == 400


def test_a_pool_counts_its_devices(client_of, ada, make_device, make_attempt):
    make_attempt(state=JobState.RUNNING, devices=[make_device(0), make_device(1)], gpus=2)
    make_device(2)
    make_device(3, health=Health.FAULTY)

    [pool] = client_of(ada).send("GET", "/pools").json()["results"]

    assert (pool["device_count"], pool["usable_count"], pool["free_count"]) == (4, 3, 1)
    assert client_of(ada).send("GET", f"/pools/{pool['id']}").json() == pool
    assert client_of(ada).send("GET", "/pools/none").status_code == 404


def test_an_operator_makes_and_changes_a_pool(client_of, root):
    client = client_of(root)
    body = {"name": "fast", "network": "none", "pythons": {"same": sys.executable}}

    made = client.send("POST", "/pools", body)
    assert (made.status_code, made.json()["device_count"]) == (201, 0)
    assert client.send("POST", "/pools", body).status_code == 409
    changed = client.send("PATCH", "/pools/fast", {"description": "the new ones"}).json()
    assert (changed["description"], changed["network"]) == ("the new ones", "none")
    assert client.send("PATCH", "/pools/slow", {}).status_code == 404
    nothing = client.send("PATCH", "/pools/fast", {})
    assert nothing.status_code == 400
    assert "Nothing to change: give one of description" in nothing.json()["detail"]


def test_interpreter_is_tried_when_it_is_registered_and_one_that_is_gone_hinders_nothing_else(
    client_of, root, tmp_path
):
    client = client_of(root)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such library >&2; exit 1\n")
    broken.chmod(0o755)
    for path, words in (("/nowhere/python", "No such file"), (str(broken), "no such library")):
        refused = client.send("POST", "/pools", {"name": "fast", "pythons": {"mine": path}})
        assert refused.status_code == 422
        assert words in refused.json()["errors"]["pythons"][0]
    Pool.objects.create(name="fast", pythons={"gone": "/nowhere/python"})

    both = {"gone": "/nowhere/python", "same": sys.executable}
    changed = client.send("PATCH", "/pools/fast", {"pythons": both, "caches": False}).json()
    assert (changed["pythons"], changed["caches"]) == (both, False)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "Fast Pool"},
        {"name": "../x"},
        {"name": ""},
        {"name": "fast", "network": "vpn"},
        {"name": "fast", "pythons": {"x": "bin/python"}},
        {"name": "fast", "pythons": {"x": 1}},
        {"name": "fast", "description": "a\nb"},
        {"name": "fast", "owner": "root"},
    ],
)
def test_b37_pools_that_are_none_are_400(body, client_of, root):
    assert client_of(root).send("POST", "/pools", body).status_code == 400


def test_the_name_of_a_pool_is_refused_in_words(client_of, root):
    errors = client_of(root).send("POST", "/pools", {"name": "Fast Pool"}).json()["errors"]

    [(_, [sentence])] = errors.items()
    assert sentence.startswith("give 1 to 64 lowercase letters, digits, '_' and '-'")
