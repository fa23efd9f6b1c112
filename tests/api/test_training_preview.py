"""How a model would train, in the answer of POST /plan; the planner runs for real, in the sandbox."""

from typing import Any

import pytest
from django.utils import timezone

from orchestrator.jobs import memory_claims
from orchestrator.models import JobState, Lease, PlannedMemory, Sharing
from orchestrator.scheduler.forecast import first_claims, training_preview
from orchestrator.spec.job_spec import GIB

pytestmark = pytest.mark.slow

MODEL = """
import torch
from torch import nn

def build_model():
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4))

def build_dataset(path):
    return torch.utils.data.TensorDataset(torch.zeros(256, 64), torch.zeros(256, dtype=torch.long))
"""


def ask(api, text: str, **fields: Any) -> Any:
    body = {"kind": "model", "entrypoint": "model.py", "source": {"text": text}, "gpus": 2, **fields}
    answer = api.send("POST", "/plan", body)
    assert answer.status_code == 200, answer.content
    return answer.json()["training"]


@pytest.fixture
def plan_as_ada(client_of, ada):
    return client_of(ada)


@pytest.fixture(autouse=True)
def _devices(make_device):
    for index in range(2):
        make_device(index, memory_gib=0.02)


def test_each_number_of_devices_shows_its_candidates_and_why_not(home, plan_as_ada):
    training = ask(plan_as_ada, MODEL)

    assert training["error"] == ""
    one, two = training["devices"]
    assert (one["gpus"], two["gpus"]) == (1, 2)
    assert two["fits"]
    assert two["chosen"]["memory_bytes"] <= two["usable_bytes"]
    assert {"DDP", "FSDP"} <= {each["summary"].split(",")[0] for each in two["candidates"]}
    assert all(each["reason"] for each in two["candidates"][1:])
    kept = list((home.root / "plans").iterdir())
    assert [path.suffix for path in kept] == [".json"]

    before = kept[0].stat().st_mtime_ns
    assert ask(plan_as_ada, MODEL) == training
    assert next((home.root / "plans").iterdir()).stat().st_mtime_ns == before


def test_a_model_too_large_for_its_devices_shows_the_nearest_miss(home, plan_as_ada):
    training = ask(plan_as_ada, MODEL, gpu_memory_gib=0.001)

    assert not training["devices"][0]["fits"]
    assert "No plan fits the model into" in training["devices"][0]["why"]


def test_a_file_without_a_model_says_what_it_needs(home, plan_as_ada):
    assert "has no build_model()" in ask(plan_as_ada, "print('hello')")["error"]


def test_code_that_never_ends_is_ended_and_nothing_is_left(home, plan_as_ada, monkeypatch):
    monkeypatch.setattr(training_preview, "LONGEST_S", 2.0)

    training = ask(plan_as_ada, "import time\nwhile True: time.sleep(1)")

    assert training["error"] == "The planner did not finish within 2 s."
    assert list((home.root / "plans").iterdir()) == []


def test_scripts_are_not_planned(home, plan_as_ada):
    assert ask(plan_as_ada, MODEL, kind="script") is None


def test_planner_gives_a_model_that_waits_its_first_claim(
    home, ada, make_pool, make_device, make_job, store_script
):
    """The agent's part, with the real planner: a row for the first job of a key, which the next pass starts by."""
    pool = make_pool(name="learning", sharing=Sharing.LEARNED)
    make_device(7, memory_gib=8, pool=pool)
    job = make_job(
        pool=pool,
        bundle=store_script(MODEL.encode(), "model.py"),
        spec={"kind": "model", "entrypoint": "model.py"},
    )
    key = memory_claims.memory_key(job.spec_fields, job.bundle)
    row = PlannedMemory.objects.create(key=key, pool=pool, job=job, created_at=timezone.now())

    first_claims.plan(row.pk)

    row.refresh_from_db()
    job.refresh_from_db()
    assert row.ended_at is not None
    assert row.memory_bytes is not None
    assert 0 < row.memory_bytes < 8 * GIB
    assert job.state == JobState.STARTING
    assert job.memory_claim["source"] == "planned"
    assert Lease.objects.get().memory_bytes == job.memory_claim["bytes"]
