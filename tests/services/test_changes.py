"""What a change of a service does to its replicas."""

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db.models.signals import pre_delete

from orchestrator.jobs import datasets
from orchestrator.jobs.submission.code import Upload
from orchestrator.models import DatasetRoot, Job, Service
from orchestrator.services import asking, controller, creation

JOB = {"command": ["python", "serve.py"], "gpus": 1}


def code(text: bytes = b"print('serves')\n") -> Upload:
    return SimpleUploadedFile("serve.py", text)


@pytest.fixture
def service(ada, home, make_pool, make_device) -> Service:
    make_pool()
    make_device(0)
    spec = asking.parse({"name": "digits", "job": JOB})
    return creation.create(ada, spec, script=code())


def change(service: Service, script: Upload | None = None, **changes: Any) -> int:
    """Change a service as its owner; returns its revision."""
    creation.update(service.owner, service, asking.ServiceChanges(**changes), script=script)
    service.refresh_from_db()
    return service.revision


@pytest.mark.parametrize(
    "rules",
    [{"deadline_s": 9.0}, {"idle_s": 5.0}, {"max_replicas": 3}, {"parallel": 4}, {"health_path": "/ready"}],
    ids=str,
)
def test_change_of_a_rule_keeps_the_replicas(service, rules):
    assert change(service, **rules) == 1
    assert {name: getattr(service, name) for name in rules} == rules


@pytest.mark.parametrize(
    "fields", [{}, {"priority": 30}, {"tags": ["new"]}, {"env": {}, "launcher": "torchrun"}], ids=str
)
def test_same_job_and_code_given_again_keep_the_replicas(service, fields):
    assert change(service, code(), job={**JOB, **fields}, idle_s=5.0) == 1
    assert fields.items() <= service.job_fields.items()


def test_a_job_that_is_given_without_code_keeps_the_code(service):
    before = service.bundle

    assert change(service, job={**JOB, "env": {"A": "1"}}) == 2
    assert service.bundle == before != ""
    assert change(service, job={**JOB, "env": {"A": "1"}}) == 2


@pytest.mark.parametrize("fields", [{"args": ["--fast"]}, {"env": {"A": "1"}}, {"memory_gib": 2}], ids=str)
def test_another_program_replaces_the_replicas(service, fields):
    assert change(service, code(), job={**JOB, **fields}) == 2


def test_same_job_given_again_takes_the_newest_version_of_its_data(service, ada, home):
    for version in ("1", "2"):
        path = home.root / "data" / version
        path.parent.mkdir(exist_ok=True)
        path.write_text("1 2 3")
        DatasetRoot.objects.get_or_create(name="data", path=str(path.parent))
        datasets.register(ada, name="digits", version=version, root="data", path=version)

    assert change(service, code(), job={**JOB, "datasets": ["digits@1"]}) == 2
    assert change(service, code(), job={**JOB, "datasets": ["digits@1"]}) == 2
    assert change(service, code(), job={**JOB, "datasets": ["digits"]}) == 3
    assert change(service, code(), job={**JOB, "datasets": ["digits"]}) == 4


def test_other_code_replaces_the_replicas(service):
    assert change(service, code(b"print('serves more')\n")) == 2


@pytest.mark.parametrize("stored", [{"command": "python", "of_an_old_version": 3}, ["a", "list"]], ids=str)
def test_a_stored_job_that_cannot_be_read_is_another_program(service, stored):
    Service.objects.filter(pk=service.pk).update(job_fields=stored)
    service.refresh_from_db()

    assert change(service, job=JOB) == 2
    assert service.job_fields["command"] == JOB["command"]


def test_new_code_drops_stored_fields_of_other_versions(service):
    fields = {**service.job_fields, "of_an_old_version": 3}
    Service.objects.filter(pk=service.pk).update(job_fields=fields)
    service.refresh_from_db()

    assert change(service, code(b"print('new')\n")) == 2
    assert "of_an_old_version" not in service.job_fields


def test_look_that_began_before_a_stop_begins_no_replica_after_it(service):
    as_it_was = Service.objects.get(pk=service.pk)
    creation.stop(service, by="ada")

    assert not controller.begin_replica(as_it_was, 0)

    assert not Job.objects.exists()


def test_look_during_a_removal_leaves_no_replica_behind(service):
    as_it_was = Service.objects.get(pk=service.pk)

    def look(**_: Any) -> None:
        controller.begin_replica(as_it_was, 0)

    pre_delete.connect(look, sender=Service)
    try:
        creation.remove(service)
    finally:
        pre_delete.disconnect(look, sender=Service)

    assert not Job.objects.unfinished().exists()
