"""Clones of earlier jobs, with and without a checkpoint to go on from."""

import pytest

from orchestrator.exceptions import Conflict, Malformed
from orchestrator.jobs.submission import clones
from orchestrator.store.checkpoints.generations import GenerationStore
from tests.jobs.submits import submit


@pytest.fixture(autouse=True)
def _devices(home, make_device):
    for index in range(2):
        make_device(index)


def keep_checkpoint(job, home):
    path = home.job(job.pk).checkpoints / "last.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"weights")
    assert GenerationStore(home.job(job.pk)).capture([path], 1, 5, lambda: True, settle_s=0)


def test_a_retry_is_a_new_job_with_the_same_code_and_its_parent(ada, home):
    job = submit(ada, name="first", gpus=2).job
    keep_checkpoint(job, home)

    again = clones.retry(ada, job, resume=True, changes={"gpus": 1})

    assert (again.bundle, again.parent_id, again.resume_job_id) == (job.bundle, job.pk, job.pk)
    assert (again.gpus, again.spec.gpus, again.name) == (1, 1, "first")


def test_a_retry_that_has_nothing_to_resume_from_is_refused(ada):
    with pytest.raises(Conflict, match="has kept no checkpoint to resume from"):
        clones.retry(ada, submit(ada).job, resume=True, changes={})


def test_a_retry_with_an_entrypoint_that_is_not_there_is_refused(ada):
    with pytest.raises(Malformed, match=r"has no file 'nope\.py'"):
        clones.retry(ada, submit(ada).job, resume=False, changes={"entrypoint": "nope.py"})
