"""Claims by memory: typed, learned from earlier runs, raised after one that was outgrown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.jobs import memory_claims
from orchestrator.jobs.memory_claims import claim_of, learn, memory_key, shape_of
from orchestrator.models import Attempt, AttemptState, ExitKind, Job, JobState, Lease, Pool, Sharing
from orchestrator.spec.job_spec import GIB


@pytest.fixture
def sharing_pool(make_pool) -> Pool:
    pool: Pool = make_pool()
    pool.sharing = Sharing.LEARNED
    pool.save()
    return pool


@pytest.fixture
def earlier_run(make_job, make_device):
    """A run that ended, and the most that each of its ranks was seen to hold."""

    def make(
        *peaks_gib: float, kind: ExitKind = ExitKind.OK, run_s: float = 100.0, name: str = "", **fields
    ) -> Attempt:
        job = make_job(state=JobState.SUCCEEDED, **fields)
        attempt = Attempt.objects.create(
            job=job,
            number=1,
            nonce="0",
            state=AttemptState.ENDED,
            kind=kind,
            run_s=run_s,
            memory_key=memory_key(job.spec_fields, job.bundle),
            created_at=job.submitted_at,
        )
        for rank, peak_gib in enumerate(peaks_gib):
            device = make_device(Lease.objects.count(), **({"name": name} if name else {}))
            Lease.objects.create(
                attempt=attempt,
                device=device,
                rank=rank,
                started_at=job.submitted_at,
                ended_at=job.submitted_at,
                peak_bytes=round(peak_gib * GIB),
            )
        return attempt

    return make


def test_typed_memory_is_claimed_as_it_is(make_job):
    claim = claim_of(make_job(spec={"gpu_memory_gib": 10}))

    assert claim.as_json() == {"bytes": 10 * GIB, "source": "typed", "error_percent": None, "runs": 0}


def test_without_a_number_the_whole_device_is_claimed(make_job, earlier_run):
    earlier_run(10)

    assert claim_of(make_job()).as_json() == {
        "bytes": None,
        "source": "whole device",
        "error_percent": None,
        "runs": 0,
    }


def test_a_pool_that_shares_claims_what_earlier_runs_used_and_says_how_sure_it_is(
    make_job, earlier_run, sharing_pool
):
    for peak_gib in (10.0, 9.0, 10.0):
        earlier_run(peak_gib)

    claim = claim_of(make_job())

    assert (claim.source, claim.runs) == ("learned", 3)
    assert claim.memory_bytes == 11 * GIB  # the largest, and the spread of the runs
    assert claim.error_percent == pytest.approx(10)


def test_largest_rank_decides_the_claim(make_job, earlier_run, sharing_pool):
    for _ in range(3):
        earlier_run(4.0, 8.0, gpus=2)

    assert claim_of(make_job(gpus=2)).memory_bytes == pytest.approx(1.05 * 8 * GIB, abs=1)


@pytest.mark.parametrize(
    "spec", [{"args": ["--batch", "64"]}, {"entrypoint": "other.py"}, {"env": {"SIZE": "2"}}, {"gpus": 2}]
)
def test_another_program_shape_or_width_learns_on_its_own(spec, make_job, earlier_run, sharing_pool):
    earlier_run(10, spec={"args": ["--batch", "32"]})

    assert claim_of(make_job(spec=spec)).source == "whole device"


def test_other_learning_rates_and_seeds_share_what_was_learned():
    assert shape_of(["--lr", "3e-4", "--seed=7", "--batch", "32"]) == shape_of(
        ["--lr", "0.1", "--seed=8", "--batch", "32"]
    )
    assert shape_of(["--batch", "32"]) != shape_of(["--batch", "64"])
    assert shape_of(["--seed", "--batch", "32"]) != shape_of(["--seed", "--batch", "64"])


def test_gpu_model_without_earlier_runs_gets_the_whole_device(
    make_job, make_device, earlier_run, sharing_pool
):
    earlier_run(10, name="H200")
    assert claim_of(make_job()).source == "learned"

    make_device(9, name="A100")

    assert claim_of(make_job()).source == "whole device"


def test_larger_need_of_two_gpu_models_is_claimed(make_job, earlier_run, sharing_pool):
    earlier_run(10, name="H200")
    earlier_run(12, name="A100")

    assert claim_of(make_job()).memory_bytes == pytest.approx(1.1 * 12 * GIB, abs=1)


@pytest.mark.parametrize(
    ("kind", "run_s", "learned"),
    [
        (ExitKind.OK, 1.0, True),
        (ExitKind.PREEMPTED, 600.0, True),
        (ExitKind.USER_ERROR, 1.0, False),
        (ExitKind.OOM_GPU, 600.0, False),
    ],
)
def test_run_that_did_not_reach_its_peak_is_not_learned_from(
    kind, run_s, learned, make_job, earlier_run, sharing_pool
):
    earlier_run(10, kind=kind, run_s=run_s)

    assert (claim_of(make_job()).source == "learned") is learned


@pytest.mark.parametrize("spec", [{"gpu_memory_gib": 10}, {}])
def test_a_job_that_outgrew_its_claim_claims_more(spec, make_job, earlier_run, sharing_pool):
    earlier_run(8)

    claim = claim_of(make_job(spec=spec, claim_floor_bytes=15 * GIB))

    assert (claim.memory_bytes, claim.source) == (15 * GIB, "raised")


def test_a_claim_beyond_the_largest_device_is_the_whole_device(make_job, make_device):
    make_device(0, memory_gib=80)

    claim = claim_of(make_job(spec={"gpu_memory_gib": 60}, claim_floor_bytes=90 * GIB))

    assert (claim.memory_bytes, claim.source) == (None, "whole device")


def test_the_next_claim_covers_what_was_seen_and_grows_at_least_by_half(make_attempt):
    attempt = make_attempt(memory_bytes=10 * GIB)
    assert memory_claims.larger_claim(attempt) == 15 * GIB

    Lease.objects.update(peak_bytes=20 * GIB)

    assert memory_claims.larger_claim(attempt) == 22 * GIB


def test_a_job_with_whole_devices_can_claim_no_more(make_attempt):
    assert memory_claims.larger_claim(make_attempt()) is None


@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=20))
def test_a_learned_claim_covers_every_run_by_at_least_its_margin(peaks):
    claim = learn(peaks)

    assert claim.memory_bytes is not None
    assert claim.memory_bytes >= max(peaks) + int(0.05 * max(peaks))
    assert claim.memory_bytes <= max(2 * max(peaks), max(peaks) + 1)
    assert claim.error_percent is not None


def test_a_long_queue_is_given_its_claims_in_few_statements(
    make_job, make_device, django_assert_max_num_queries
):
    make_device(0)
    jobs = [make_job(spec={"gpu_memory_gib": 1 + number % 2}) for number in range(30)]
    waiting = list(Job.objects.select_related("pool"))

    with django_assert_max_num_queries(4):
        memory_claims.refresh(waiting)

    claims = [Job.objects.get(pk=job.pk).memory_claim["bytes"] for job in jobs]
    assert claims == [GIB, 2 * GIB] * 15
