"""The main action of an ended job: what helps after this ending, for every kind there is."""

import re

import pytest
from django.urls import reverse
from django.utils import timezone

from dashboard.parts.remedies import REMEDIES, choices
from orchestrator.jobs import training_plans
from orchestrator.models import Checkpoint, ExitKind, Job, JobState
from tests.dashboard.markup import html_of
from tests.jobs.test_training_plans import PLAN, plan_event

STATES = {
    ExitKind.OK: JobState.SUCCEEDED,
    ExitKind.CANCELLED: JobState.CANCELLED,
    ExitKind.TIMEOUT: JobState.TIMED_OUT,
}
MAIN = {
    ExitKind.OK: (None, None),
    ExitKind.USER_ERROR: ("Replace the script", "Replace the script"),
    ExitKind.OOM_GPU: ("Clone and edit", "Clone and edit"),
    ExitKind.OOM_CPU: ("Clone and edit", "Clone and edit"),
    ExitKind.SIGNAL: ("Run again", "Resume from checkpoint"),
    ExitKind.HANG: ("Run again", "Resume from checkpoint"),
    ExitKind.LOST: ("Run again", "Resume from checkpoint"),
    ExitKind.GPU_FAULT: ("Run again", "Resume from checkpoint"),
    ExitKind.INFRA: ("Run again", "Resume from checkpoint"),
    ExitKind.CANCELLED: ("Run again", "Resume from checkpoint"),
    ExitKind.TIMEOUT: ("Clone and edit", "Resume from checkpoint"),
    ExitKind.PREEMPTED: ("Run again", "Resume from checkpoint"),
    ExitKind.CODE: ("Clone and edit", "Clone and edit"),
    ExitKind.ENVIRONMENT: ("Clone and edit", "Clone and edit"),
    ExitKind.DATA: ("Clone and edit", "Clone and edit"),
}


@pytest.fixture
def ended(make_job):
    """A job that ran once and ended in this way, with or without a checkpoint."""

    def make(kind: ExitKind, *, keeps: bool = False, **fields) -> Job:
        state = STATES.get(kind, JobState.FAILED)
        job: Job = make_job(state=state, exit_kind=kind, attempt_count=1, **fields)
        if keeps:
            Checkpoint.objects.create(
                job=job, attempt_number=1, step=10, name="10", source="script", size_bytes=5,
                created_at=timezone.now(),
            )  # fmt: skip
        return job

    return make


def test_every_kind_of_ending_has_a_remedy():
    assert set(REMEDIES) == set(MAIN) == set(ExitKind)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("kind", ExitKind)
def test_the_main_action_is_what_helps_after_this_ending(reader, ada, ended, kind, keeps):
    job = ended(kind, keeps=keeps)

    html = html_of(reader(ada).get(reverse("job", args=[job.pk])))

    (head,) = re.findall(r'<div class="job-actions">(.*?)</details>', html, re.DOTALL)
    main = re.findall(r'class="[^"]*\bis-main"[^>]*>([^<]+)<', head)
    assert main == [label for label in [MAIN[kind][keeps]] if label]
    for label in ("Run again", "Clone and edit", *(["Resume from checkpoint"] if keeps else [])):
        assert head.count(f">{label}<") == 1


def test_a_job_that_never_ran_is_edited(make_job):
    job = make_job(state=JobState.FAILED, exit_kind=ExitKind.INFRA)

    main, _ = choices(job)

    assert main is not None
    assert main.action == "edit"


def test_a_job_that_was_cancelled_while_it_waited_is_run_again(make_job):
    main, _ = choices(make_job(state=JobState.CANCELLED))

    assert main is not None
    assert main.action == "retry"


@pytest.fixture
def model_out_of_memory(make_job, make_attempt, make_device, store_script):
    """A job that Berth trains, whose last attempt told its plan and ran out of memory."""
    devices = [make_device(index) for index in range(PLAN.world_size)]
    job = make_job(gpus=2, bundle=store_script(), spec={"kind": "model", "gpus": 2})
    attempt = make_attempt(job, state=JobState.RUNNING, devices=devices)
    attempt.plan = training_plans.read_event(plan_event())
    attempt.save()
    Job.objects.filter(pk=job.pk).update(state=JobState.FAILED, exit_kind=ExitKind.OOM_GPU)
    return Job.objects.get(pk=job.pk)


def test_a_model_that_ran_out_of_memory_is_run_with_half_the_micro_batch(reader, ada, model_out_of_memory):
    job = model_out_of_memory
    main, _ = choices(job)
    assert main is not None
    assert (main.action, main.label) == ("lighter", "Run with less memory")
    assert "micro-batch 16 -> 8" in main.hint

    reader(ada).post(reverse("job-act", args=[job.pk, "lighter"]))

    made = Job.objects.get(parent=job)
    assert made.next_plan["batch_size"] == 8


def test_a_script_is_not_run_with_less_memory(reader, ada, ended):
    job = ended(ExitKind.OOM_GPU)

    page = html_of(reader(ada).post(reverse("job-act", args=[job.pk, "lighter"]), follow=True))

    assert "clone it and change what it asks for" in page
    assert Job.objects.count() == 1


def test_replacing_the_script_keeps_the_request_and_asks_for_a_file(reader, ada, ended):
    job = ended(ExitKind.USER_ERROR)
    page = html_of(reader(ada).get(reverse("job", args=[job.pk])))
    found = re.search(r'href="([^"]*replace=1[^"]*)"', page)
    assert found

    form = html_of(reader(ada).get(found[1].replace("&amp;", "&")))

    assert "runs unless you choose the script that replaces it" in form
    assert "The new train.py or .zip</label>" in form
