"""Jobs in container images, through REST: what is accepted, and what they wait for."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from orchestrator.jobs.environments import preparing
from orchestrator.jobs.launch import isolation
from orchestrator.models import Environment, ExitKind, Job, JobState
from orchestrator.scheduler import passes
from orchestrator.scheduler import waiting as waits
from tests.conftest import lacking
from tests.images import serve_registry


@pytest.fixture
def submit(client_of, ada, make_device, settings) -> Callable[..., Any]:
    """Submit a script of ada's; the answer."""
    if not isolation.level():
        lacking("bubblewrap does not work here")
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, data_allow=("127.0.0.1",))
    make_device()

    def send(**fields: Any) -> Any:
        return client_of(ada).send("POST", "/jobs", {"source": {"text": "print(1)\n"}, **fields})

    return send


@pytest.mark.django_db(transaction=True)
def test_submitted_job_waits_for_its_image_and_says_so(submit, client_of, ada):
    answer = submit(image="pytorch/pytorch:2.9.0")

    assert answer.status_code == 201, answer.content
    assert answer.json()["image"] == "pytorch/pytorch:2.9.0"
    job = Job.objects.get()
    assert job.environment is not None
    assert (job.environment.image, job.environment.origin) == ("pytorch/pytorch:2.9.0",) * 2
    passes.run_pass()
    job.refresh_from_db()
    assert (job.state, job.wait_code) == (JobState.QUEUED, "environment")
    assert waits.sentence(job, timezone.now(), "") == "Waits for the image pytorch/pytorch:2.9.0."


@pytest.mark.django_db(transaction=True)
def test_job_whose_image_cannot_be_had_fails_with_the_sentence(submit):
    with serve_registry() as registry:
        submit(image=registry.name("lab/none:1"))
        preparing.prepare(Environment.objects.get().pk)

    job = Job.objects.get()
    assert (job.state, job.exit_kind) == (JobState.FAILED, ExitKind.ENVIRONMENT)
    assert "has no lab/none 1" in job.exit_detail


@pytest.mark.django_db(transaction=True)
def test_clone_runs_in_the_same_image_unless_it_names_another(submit, client_of, ada):
    first = submit(image="lab/train:1").json()

    clone = client_of(ada).send("POST", f"/jobs/{first['id']}/retry", {}).json()
    other = client_of(ada).send("POST", f"/jobs/{first['id']}/retry", {"image": "lab/train:2"}).json()
    plain = client_of(ada).send("POST", f"/jobs/{first['id']}/retry", {"image": None}).json()

    rows = {job.pk.hex: job.environment for job in Job.objects.select_related("environment")}
    used = [rows[each["id"].replace("-", "")] for each in (first, clone, other, plain)]
    assert used[0] == used[1]
    assert [row and row.image for row in used] == ["lab/train:1", "lab/train:1", "lab/train:2", None]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"image": "Not An Image"}, "is not the name of an image"),
        ({"image": "oci:relative"}, "names no path of the server"),
        ({"image": "a/b", "with_packages": ["einops"]}, "leave with_packages out"),
        ({"image": "a/b", "environment": "berth"}, "leave environment out"),
        ({"image": "a/b", "kind": "session", "program": "jupyter"}, "leave program out"),
        ({"image": "a/b", "kind": "model"}, "Berth trains a model with its own Python"),
        ({"image": "a/b", "launcher": "direct", "gpus": 2}, "started by its torchrun"),
        ({"image": "oci:/etc"}, "/etc is in no folder that images may come from"),
    ],
)
def test_image_that_cannot_be_used_is_refused_at_the_submit(submit, fields, words):
    answer = submit(**fields)

    assert answer.status_code in (400, 422), answer.content
    assert words in answer.content.decode()
