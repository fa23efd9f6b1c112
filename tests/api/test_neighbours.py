"""What REST says of jobs that share a device."""

import pytest
from django.utils import timezone

from orchestrator.jobs.memory_claims import memory_key
from orchestrator.models import JobState, LoneRun, Slowdown
from orchestrator.spec.job_spec import GIB


@pytest.fixture
def pair(make_attempt, make_device):
    """Two jobs on one device, of which the first was seen to be 18 % slower beside the second."""
    device = make_device(0)
    jobs = [
        make_attempt(
            state=JobState.RUNNING,
            devices=[device],
            memory_bytes=GIB,
            name=name,
            spec={"args": [name], "gpu_memory_gib": 1},
        ).job
        for name in ("vit-s", "ner")
    ]
    vit, ner = (memory_key(job.spec_fields, job.bundle) for job in jobs)
    facts = {"device_name": device.name, "runs": 99, "seen_at": timezone.now()}
    for work in (vit, ner):
        LoneRun.objects.create(work=work, use=0.5, steps_per_s=1.0, **facts)
    Slowdown.objects.create(work=vit, other=ner, slowdown=1.18, **facts)
    return jobs


def test_job_answers_with_its_neighbours_and_what_they_cost_it(pair, client_of, ada):
    vit, ner = pair

    answer = client_of(ada).get(f"/api/v1/jobs/{vit.pk}").json()

    assert answer["beside"] == [
        {
            "device": "simulated GPU 0",
            "jobs": [{"id": str(ner.pk), "name": "ner", "owner": "ada"}],
            "slowdown": pytest.approx(1.18, abs=0.01),
            "measured": True,
            "sentence": "vit-s is 18 % slower beside ner.",
        }
    ]


@pytest.mark.parametrize("limit", [2.0, 1.0])
def test_operator_sets_how_much_neighbours_may_slow_each_other(make_pool, client_of, root, limit):
    make_pool()

    assert client_of(root).get("/api/v1/pools/default").json()["slowdown_limit"] == 1.3
    answer = client_of(root).send("PATCH", "/pools/default", {"slowdown_limit": limit})

    assert answer.json()["slowdown_limit"] == limit


@pytest.mark.parametrize("limit", [0.5, -1, 1000, "much", "NaN"])
def test_limit_that_makes_no_sense_is_refused(make_pool, client_of, root, limit):
    make_pool()

    answer = client_of(root).send("PATCH", "/pools/default", {"slowdown_limit": limit})

    assert answer.status_code == 400
    assert "slowdown_limit" in answer.content.decode()
