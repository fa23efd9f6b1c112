"""What a job claims of a device's memory, as its owner sees it at submit."""

import pytest

from orchestrator.jobs.memory_claims import memory_key
from orchestrator.models import Attempt, AttemptState, Device, ExitKind, Job, Lease, Pool, Sharing
from orchestrator.scheduler import passes
from orchestrator.spec.job_spec import GIB


@pytest.fixture
def earlier_runs(client_of, ada, submit):
    """The submitted script ran three times and was seen to hold 8 to 10 GiB."""
    for peak_gib in (8, 10, 9):
        job = Job.objects.get(pk=submit(client_of(ada)).json()["id"])
        attempt = Attempt.objects.create(
            job=job,
            number=1,
            nonce="0",
            state=AttemptState.ENDED,
            kind=ExitKind.OK,
            memory_key=memory_key(job.spec_fields, job.bundle),
            created_at=job.submitted_at,
        )
        Lease.objects.create(
            attempt=attempt,
            device=Device.objects.get(pk="sim-0"),
            rank=0,
            started_at=job.submitted_at,
            ended_at=job.submitted_at,
            peak_bytes=peak_gib * GIB,
        )


def test_what_was_typed_is_claimed(client_of, ada, submit):
    answer = submit(client_of(ada), gpu_memory_gib=12)

    assert answer.json()["memory_claim"] == {
        "bytes": 12 * GIB,
        "source": "typed",
        "error_percent": None,
        "runs": 0,
    }


def test_a_learned_claim_is_shown_at_submit_with_its_error(client_of, ada, root, submit, earlier_runs):
    assert client_of(root).send("PATCH", "/pools/default", {"sharing": "learned"}).status_code == 200

    claim = submit(client_of(ada)).json()["memory_claim"]

    assert claim == {"bytes": 12 * GIB, "source": "learned", "error_percent": 20.0, "runs": 3}


def test_without_sharing_a_job_that_types_nothing_has_whole_devices(client_of, ada, submit, earlier_runs):
    assert submit(client_of(ada)).json()["memory_claim"]["source"] == "whole device"


def test_a_waiting_job_claims_what_was_learned_meanwhile(client_of, ada, submit, earlier_runs, make_attempt):
    client = client_of(ada)
    for index in range(2):  # nothing is free
        make_attempt(devices=[Device.objects.get(pk=f"sim-{index}")])
    job = submit(client).json()["id"]
    Pool.objects.update(sharing=Sharing.LEARNED)

    passes.run_pass()

    assert client.send("GET", f"/jobs/{job}").json()["memory_claim"]["bytes"] == 12 * GIB


@pytest.mark.parametrize("value", ["always", 1, True])
def test_sharing_takes_its_two_words_only(value, client_of, root, make_pool):
    make_pool()

    answer = client_of(root).send("PATCH", "/pools/default", {"sharing": value})

    assert answer.status_code == 400
    assert "sharing" in answer.json()["errors"]


@pytest.mark.parametrize("value", [-1, 1.5, "3", 10**9, True])
def test_idle_times_are_whole_seconds_within_a_month(value, client_of, root, make_pool):
    make_pool()

    assert client_of(root).send("PATCH", "/pools/default", {"idle_stop_after_s": value}).status_code == 400


def test_everybody_signed_in_sees_how_good_the_claims_of_a_pool_were(client_of, anonymous, bob, earlier_runs):
    claimed = {"bytes": 11 * GIB, "source": "learned", "error_percent": 10.0, "runs": 3}
    Job.objects.update(memory_claim=claimed)
    Lease.objects.update(memory_bytes=11 * GIB)

    answer = client_of(bob).send("GET", "/pools/default/memory-claims")

    assert answer.json() == [
        {"source": "learned", "runs": 3, "median_error_percent": 22.2, "too_small_percent": 0.0}
    ]
    assert anonymous.send("GET", "/pools/default/memory-claims").status_code == 401
    assert client_of(bob).send("GET", "/pools/none/memory-claims").status_code == 404
