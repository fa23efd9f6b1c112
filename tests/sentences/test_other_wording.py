"""With every sentence worded otherwise the same is decided."""

from datetime import timedelta

import pytest
from django.utils import timezone

from dashboard.pages.job import answer
from dashboard.parts.notices import adds_nothing
from orchestrator.agent.attempts import AttemptWatch
from orchestrator.agent.follow import Follower
from orchestrator.agent.outside_checkpoints import OutsideKeeper
from orchestrator.facts.endings import Ended
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import Attempt, Checkpoint, ExitKind, Job, JobState
from orchestrator.people.notices.events import occasion_of
from orchestrator.scheduler import passes
from orchestrator.sentences import TABLE
from orchestrator.sentences.waits import WAITS
from orchestrator.server.doctor.outputs import check_resumes

pytestmark = pytest.mark.django_db


@pytest.fixture(params=["as it stands", "otherwise"])
def wording(request, monkeypatch):
    """Both wordings; the other one says the same of everything."""
    if request.param == "otherwise":
        for table in (TABLE, WAITS):
            for code in table:
                monkeypatch.setitem(table, code, lambda *_, **__: "So it goes.")


def kinds(job: Job) -> list[str]:
    return list(job.events.order_by("number").values_list("kind", flat=True))


def fall_back(attempt: Attempt) -> None:
    beginning = fact(Happened.FELL_BACK, checkpoint="generation 1", step=10, why="it is cut short")
    lifecycle.remark(attempt.job, beginning, actor="launcher")


@pytest.mark.usefixtures("wording")
def test_a_run_without_a_sound_checkpoint_knows_that_it_had_one(make_attempt):
    first = make_attempt(state=JobState.RUNNING)
    ending = Ending(ExitKind.INFRA, fact(Ended.LOST), at=timezone.now(), progressed=True)
    job = lifecycle.end(first, ending)
    second = lifecycle.start(
        job, [(lease.device, None) for lease in first.leases.all()], nonce="n", now=timezone.now()
    )
    fall_back(second)

    lifecycle.run(second, started_at=timezone.now())

    ran = job.events.of(Happened.RUNS).latest("number")
    assert ran.data == {"attempt": 2, "anew": True, "damaged": 1, "damage": "it is cut short"}


@pytest.mark.usefixtures("wording")
def test_doctor_accepts_a_start_from_the_beginning_only_with_a_fallback(make_attempt):
    first = make_attempt(state=JobState.RUNNING)
    Checkpoint.objects.create(
        job=first.job, attempt_number=1, step=10, name="generation 1", source="script", size_bytes=1,
        created_at=timezone.now(),
    )  # fmt: skip
    ending = Ending(ExitKind.INFRA, fact(Ended.LOST), at=timezone.now(), progressed=True)
    job = lifecycle.end(first, ending)
    second = lifecycle.start(
        job, [(lease.device, None) for lease in first.leases.all()], nonce="n", now=timezone.now()
    )
    lifecycle.run(second, started_at=timezone.now())
    assert len(list(check_resumes())) == 1

    fall_back(second)

    assert not list(check_resumes())


@pytest.mark.usefixtures("wording", "home")
def test_silence_is_told_once_also_by_the_next_agent(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    at = timezone.now() - timedelta(hours=1)
    Job.objects.update(step=7, last_report_at=at, queued_at=at - timedelta(hours=1))
    attempt.job.refresh_from_db()

    for _ in range(2):
        AttemptWatch(attempt)._note_silence(attempt.job)

    assert kinds(attempt.job).count(Happened.SILENT) == 1


@pytest.mark.usefixtures("wording")
def test_a_loss_that_is_no_number_is_told_once_also_by_the_next_agent(make_attempt, home):
    attempt = make_attempt(state=JobState.RUNNING)
    folder = home.job(attempt.job_id).attempt(1)
    folder.logs.mkdir(parents=True)
    for step in (3, 4):
        with folder.metrics.open("a") as file:
            file.write(f'{{"step": {step}, "loss": NaN}}\n')
        Job.objects.update(diverged_step=None)
        follower = Follower(Attempt.objects.select_related("job").get(pk=attempt.pk))
        follower.poll()
        follower.close()

    assert kinds(attempt.job).count(Happened.DIVERGED) == 1


@pytest.mark.usefixtures("wording")
def test_a_file_that_is_not_kept_is_pointed_out_once_for_its_pattern(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    keeper = OutsideKeeper.__new__(OutsideKeeper)
    keeper.attempt = attempt

    for times in (2, 3):
        what = fact(Happened.OUTSIDE_NOT_KEPT, path="a.pt", times=times, glob="*.pt")
        keeper._tell(what, once_for="glob")

    assert kinds(attempt.job).count(Happened.OUTSIDE_NOT_KEPT) == 1


@pytest.mark.usefixtures("wording")
def test_the_same_is_retried_and_given_up(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING, spec={"max_retries": 1})
    killed = Ending(ExitKind.SIGNAL, fact(Ended.KILLED, rank=0), at=timezone.now())

    job = lifecycle.end(attempt, killed)
    attempt.refresh_from_db()
    shown = answer(job, [attempt])

    assert (job.state, job.why["code"], job.why["facts"]["failure"]) == (
        JobState.BACKOFF,
        Happened.RETRIED,
        1,
    )
    assert shown is not None
    assert shown["detail"] == ""  # the reason begins with it


@pytest.mark.usefixtures("wording")
def test_the_same_is_news(make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    lifecycle.end(attempt, Ending(ExitKind.OK, fact(Ended.FINISHED), at=timezone.now()))
    ended = attempt.job.events.latest("number")

    assert occasion_of(ended) == "finished"
    assert adds_nothing(ended)


@pytest.mark.usefixtures("wording", "home")
def test_a_pass_writes_the_same_down(make_job, make_device):
    make_device(0, kind="sim")
    for _ in range(2):
        make_job()

    assert passes.run_pass() == 1

    waiting = Job.objects.get(state=JobState.QUEUED)
    assert waiting.wait_code == "devices"
    assert (waiting.wait_facts["gpus"], waiting.wait_facts["free"]) == (1, 0)
