"""What a pool allows sessions; other jobs are not touched."""

import pytest

from orchestrator.exceptions import Conflict, Impossible
from orchestrator.jobs import lifecycle
from orchestrator.models import Job, Pool
from orchestrator.sessions import listing, sleeping
from tests.sessions.test_sleeping import asleep as asleep


@pytest.fixture
def rule(make_device, home):
    for index in range(4):
        make_device(index)

    def set_(**fields: object) -> None:
        Pool.objects.update(**fields)

    return set_


def begin(user, **fields) -> Job:
    return listing.start(user, {"command": ["serve"], **fields})


def test_session_with_too_many_devices_is_refused(ada, rule):
    rule(session_most_devices=1)

    with pytest.raises(Impossible, match="A session in pool default has at most 1 device") as refused:
        begin(ada, gpus=2)

    assert list(refused.value.fields) == ["gpus"]
    assert begin(ada, gpus=1).gpus == 1


def test_session_that_would_last_too_long_is_refused_and_one_without_a_limit_gets_the_pools(ada, rule):
    rule(session_most_s=8 * 3600)

    with pytest.raises(Impossible, match="ends after 8 h at the latest"):
        begin(ada, time_limit_s=9 * 3600)

    assert begin(ada).time_limit_s == 8 * 3600
    assert begin(ada, time_limit_s=3600).time_limit_s == 3600


def test_session_that_names_no_memory_gets_the_pools_share(ada, rule):
    rule(session_memory_gib=20)

    assert begin(ada).spec.gpu_memory_gib == 20
    assert begin(ada, gpu_memory_gib=40).spec.gpu_memory_gib == 40


def test_person_has_only_so_many_sessions_at_once(ada, bob, rule):
    rule(sessions_a_person=2)
    first, _ = begin(ada), begin(ada)

    with pytest.raises(
        Conflict, match="You have 2 sessions in pool default, as many as it allows; stop one first"
    ):
        begin(ada)

    begin(bob)
    lifecycle.cancel(first, by="ada")
    begin(ada)


def test_sleeping_session_does_not_count_until_it_is_woken(ada, asleep, rule):
    rule(sessions_a_person=1)
    other = begin(ada)

    with pytest.raises(Conflict, match="You have one session"):
        sleeping.wake(ada, asleep)

    lifecycle.cancel(other, by="ada")
    sleeping.wake(ada, asleep)


def test_other_jobs_know_no_limit_of_sessions(ada, rule, submit_job):
    rule(session_most_devices=1, session_most_s=60, session_memory_gib=1, sessions_a_person=0)

    job = submit_job(gpus=2, time_limit_s=3600)

    assert (job.gpus, job.time_limit_s, job.spec.gpu_memory_gib) == (2, 3600, None)


@pytest.fixture
def submit_job(ada):
    from orchestrator.jobs.submission import intake

    def submit(**fields) -> Job:
        return intake.accept(ada, intake.parse_spec({"source": {"text": "print(1)"}, **fields})).job

    return submit


def test_rules_are_read_and_changed_by_rest(root, reader_of, rule):
    rule()
    client = reader_of(root)
    rules = {
        "session_most_devices": 2,
        "session_most_s": 3600,
        "session_memory_gib": 12.5,
        "sessions_a_person": 3,
    }

    answer = client.patch("/api/v1/pools/default", rules, content_type="application/json")

    assert answer.status_code == 200, answer.content
    assert client.get("/api/v1/pools/default").json() | rules == client.get("/api/v1/pools/default").json()
