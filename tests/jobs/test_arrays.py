"""Many jobs of one submit, jobs put off, and what a job waits for."""

from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.agent.sweeps import Sweeper
from orchestrator.exceptions import Impossible, Malformed
from orchestrator.jobs import lifecycle
from orchestrator.jobs.submission import clones, intake
from orchestrator.jobs.submission.intake import parse_spec
from orchestrator.models import Job, JobArray, JobState
from orchestrator.scheduler import passes
from orchestrator.spec.data_names import fill_placeholders
from tests.read_sentences import wait_sentence


@pytest.fixture(autouse=True)
def _devices(home, make_device):
    for index in range(4):
        make_device(index)


def submit(user, **fields):
    spec = parse_spec({"source": {"text": "print(1)\n"}, **fields})
    return intake.accept(user, spec, idempotency_key=fields.get("name")).job


def states():
    return list(Job.objects.order_by("pk").values_list("state", flat=True))


@pytest.mark.parametrize(
    ("given", "members", "at_most"),
    [
        ({"count": 3}, [0, 1, 2], None),
        (3, [0, 1, 2], None),
        ("0-3", [0, 1, 2, 3], None),
        ("5, 1-3:2 %2", [1, 3, 5], 2),
        ({"indices": "7", "at_most": 1}, [7], 1),
    ],
)
def test_an_array_is_written_as_a_count_or_as_indices(given, members, at_most):
    array = parse_spec({"array": given}).array

    assert array is not None
    assert (array.members, array.at_most) == (members, at_most)


@pytest.mark.parametrize(
    "given",
    [
        0,
        -1,
        1001,
        True,
        1.5,
        "",
        "a",
        "3-1",
        "0-9:0",
        "0-1000",
        "0-9%",
        "0-9%0",
        "0-2000000",
        {"count": 2, "indices": "1"},
        {},
    ],
)
def test_an_array_without_members_or_with_too_many_is_malformed(given):
    with pytest.raises(Malformed) as error:
        parse_spec({"array": given})
    assert list(error.value.fields) == ["array"]


def test_an_array_is_one_snapshot_and_one_key_for_all_its_jobs(ada):
    first = submit(ada, name="sweep", array="2-4%1")
    again = submit(ada, name="sweep", array="2-4%1")

    assert again == first
    assert JobArray.objects.get().count == 3
    assert list(Job.objects.order_by("pk").values_list("name", "array_index")) == [
        ("sweep[2]", 2),
        ("sweep[3]", 3),
        ("sweep[4]", 4),
    ]
    assert Job.objects.values("bundle").distinct().count() == 1
    assert "array" not in first.spec_fields


def test_at_most_the_allowed_members_run_at_once(ada):
    first = submit(ada, name="sweep", array="0-2%1")

    passes.run_pass()

    assert states() == ["starting", "queued", "queued"]
    waiting = Job.objects.queued().first()
    assert waiting is not None
    assert waiting.wait_code == "array"
    assert wait_sentence(waiting) == "Waits for its array: 1 of at most 1 of its jobs run."
    lifecycle.cancel(Job.objects.get(pk=first.pk), by="ada")
    passes.run_pass()
    assert states().count("queued") == 2


def test_retried_member_keeps_its_index(ada):
    member = submit(ada, name="sweep", array={"indices": "5"})

    again = clones.retry(ada, member, resume=False, changes={})

    assert (again.array, again.array_index, JobArray.objects.count()) == (member.array, 5, 1)
    with pytest.raises(Malformed, match="One job is run again"):
        clones.retry(ada, member, resume=False, changes={"array": 3})


def test_the_index_is_a_placeholder():
    assert fill_placeholders(["--seed={array_index}"], {"array_index": "3"}) == ["--seed=3"]


@pytest.mark.parametrize(
    "text", ["tomorrow", "2026-11-21", "2026-11-21T07:00:00", "2026-13-01T00:00:00Z", 5, "1e9", "", True]
)
def test_start_time_without_zone_or_meaning_is_malformed(text):
    with pytest.raises(Malformed) as error:
        parse_spec({"not_before": text})
    assert list(error.value.fields) == ["not_before"]


def test_a_start_time_years_ahead_is_refused(ada):
    with pytest.raises(Impossible, match="by a year at most"):
        submit(ada, not_before="2190-01-01T00:00:00Z")


def test_delayed_job_starts_at_its_time(ada):
    start = timezone.now() + timedelta(hours=2)
    submit(ada, not_before=start.isoformat())
    sweeper = Sweeper()
    passes.run_pass()
    job = Job.objects.get()
    assert (job.state, job.wait_code) == (JobState.QUEUED, "not_before")
    assert wait_sentence(job) == "Starts in 2 h at the earliest, as asked."

    sweeper.sweep(timezone.now())
    sweeper.pass_when_due(start - timedelta(seconds=1))
    assert states() == ["queued"]
    sweeper.pass_when_due(start)
    assert states() == ["starting"]


@pytest.mark.parametrize(("when", "expected"), [("success", "failed"), ("any", "starting")])
def test_a_job_waits_for_success_or_for_any_end(ada, when, expected):
    first = submit(ada)
    lifecycle.hold(first, by="ada")
    submit(ada, depends_on=[{"job": str(first.pk), "when": when}])
    passes.run_pass()
    waiting = Job.objects.exclude(pk=first.pk).get()
    verb = "succeed" if when == "success" else "end"
    assert wait_sentence(waiting).endswith(f"to {verb}.")

    lifecycle.cancel(Job.objects.get(pk=first.pk), by="ada")
    passes.run_pass()
    passes.run_pass()

    waiting.refresh_from_db()
    assert waiting.state == expected


def test_a_dependency_may_be_named_by_the_end_of_its_id(ada, bob):
    first = submit(ada)

    second = submit(ada, depends_on=[first.short_id])

    assert second.spec_fields["depends_on"] == [str(first.pk)]
    with pytest.raises(Impossible, match="There is no job"):
        submit(bob, depends_on=[first.short_id])
