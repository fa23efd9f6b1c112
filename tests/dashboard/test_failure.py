"""A failure on a job's page: own frames with the kept code, library frames folded, and what changed since it passed."""

import pytest
from django.urls import reverse
from django.utils import timezone

from dashboard.parts import failure, remedies
from orchestrator.models import Attempt, AttemptState, ExitKind, Job, JobState
from tests.dashboard.markup import html_of

SCRIPT = b"""import torch


def loss_of(batch):
    raise ValueError(f"no loss of {batch}")


loss_of(3)
"""
TAIL = """step 1 loss 0.5
[rank1]: Traceback (most recent call last):
[rank1]:   File "/srv/berth/jobs/7/work/train.py", line 8, in <module>
[rank1]:     loss_of(3)
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1518, in _call_impl
[rank1]:     return forward_call(*args, **kwargs)
[rank1]:   File "/usr/lib/python3.11/contextlib.py", line 81, in inner
[rank1]:     return func(*args, **kwds)
[rank1]:   File "/srv/berth/jobs/7/work/train.py", line 5, in loss_of
[rank1]:     raise ValueError(f"no loss of {batch}")
[rank1]: ValueError: no loss of 3
[rank1]:   at the second line of its text
W0101 torchrun: sending SIGTERM
"""


@pytest.fixture
def failed(make_attempt, store_script):
    """A job whose script raised; more fields of the job by name."""

    def make(tail: str = TAIL, kind: ExitKind = ExitKind.USER_ERROR, script: bytes = SCRIPT, **spec) -> Job:
        spec = {"entrypoint": "train.py", **spec}
        job: Job = make_attempt(state=JobState.RUNNING, bundle=store_script(script), spec=spec).job
        Attempt.objects.filter(job=job).update(
            state=AttemptState.ENDED, ended_at=timezone.now(), kind=kind, log_tail=tail
        )
        fields = {"state": JobState.FAILED, "exit_kind": kind, "ended_at": timezone.now()}
        Job.objects.filter(pk=job.pk).update(**fields)
        return Job.objects.get(pk=job.pk)

    return make


def test_own_frames_have_the_kept_code_and_library_frames_are_folded(failed):
    trace = failure.read_trace(failed(), TAIL)

    assert trace is not None
    assert [(group.is_own, len(group.frames)) for group in trace.groups] == [(True, 1), (False, 2), (True, 1)]
    own, libraries, last = trace.groups
    assert (own.frames[0].path, own.frames[0].number) == ("train.py", 8)
    assert libraries.packages == ["torch", "contextlib.py"]
    assert libraries.frames[0].path == "torch/nn/modules/module.py"
    assert [line for line in last.frames[0].lines if line.is_current] == [
        (5, '    raise ValueError(f"no loss of {batch}")', True)
    ]
    assert trace.message == "ValueError: no loss of 3\n  at the second line of its text"


def test_the_page_tells_the_failure_once_and_without_the_servers_paths(reader, ada, failed):
    job = failed()

    page = html_of(reader(ada).get(reverse("job", args=[job.pk])))

    answer = page[page.index('aria-label="What happened"') : page.index('id="job-body"')]
    assert "/srv/berth" not in answer
    assert "2 calls in torch, contextlib.py" in answer
    assert f'href="/jobs/{job.pk}/code?path=train.py#line-5"' in answer
    assert "Last lines of that rank" not in answer


@pytest.mark.parametrize(
    "tail",
    [
        "",
        "Segmentation fault",
        "Traceback (most recent call last):",
        'Traceback (most recent call last):\n  File "x',
    ],
)
def test_an_end_without_a_traceback_shows_the_last_lines(reader, ada, failed, tail):
    job = failed(tail)

    assert failure.read_trace(job, tail) is None
    page = html_of(reader(ada).get(reverse("job", args=[job.pk])))
    assert ("Last lines of that rank" in page) is bool(tail)


def test_a_file_that_is_shorter_than_its_frame_says_has_no_lines(failed):
    tail = 'Traceback (most recent call last):\n  File "/w/train.py", line 99999, in f\nKeyError: 1'

    trace = failure.read_trace(failed(), tail)

    assert trace is not None
    assert trace.groups[0].frames[0].lines == []


def test_what_changed_since_the_run_that_last_passed_is_shown(
    reader, ada, bob, failed, make_job, store_script
):
    before = store_script(SCRIPT.replace(b"raise ValueError", b"return len"))
    passed = {"state": JobState.SUCCEEDED, "bundle": before, "ended_at": timezone.now()}
    spec = {"entrypoint": "train.py"}
    make_job(bob, **passed, spec=spec)
    ours = make_job(ada, **passed, spec={**spec, "args": ["--lr", "1e-3"]})
    job = failed(args=["--lr", "3e-4"])

    found = failure.last_passed(job, ada)

    assert found is not None
    assert found.job == ours
    assert [(row.name, [cell.text for cell in row.cells]) for row in found.settings] == [
        ("lr", ["1e-3", "3e-4"])
    ]
    assert '-    return len(f"no loss of {batch}")' in found.diff
    page = html_of(reader(ada).get(reverse("job", args=[job.pk])))
    assert "What changed since it last passed" in page
    assert '<span class="bad">- return len(' in page


@pytest.mark.parametrize(
    ("args", "fix"),
    [
        (
            ["--batch-size", "32", "--lr", "1"],
            ("Clone with --batch-size 16", "args", "--batch-size 16 --lr 1"),
        ),
        (["--bs=9"], ("Clone with --bs 4", "args", "--bs=4")),
        (["train.batch_size=8"], ("Clone with train.batch_size 4", "args", "train.batch_size=4")),
    ],
)
def test_out_of_memory_offers_half_of_the_batch_that_the_arguments_name(failed, args, fix):
    job = failed(kind=ExitKind.OOM_GPU, args=args)

    assert [(each.label, each.field, each.value) for each in remedies.fixes(job)] == [fix]


@pytest.mark.parametrize(
    "args", [[], ["--batch-size"], ["--batch-size", "1"], ["--batch-size", "auto"], ["--batches", "4"]]
)
def test_without_a_batch_to_halve_nothing_is_offered(failed, args):
    assert remedies.fixes(failed(kind=ExitKind.OOM_GPU, args=args)) == []


def test_a_fix_fills_the_form(reader, ada, failed):
    job = failed(kind=ExitKind.OOM_GPU, args=["--batch-size", "32"], gpu_memory_gib=8)

    page = html_of(reader(ada).get(reverse("job", args=[job.pk])))
    form = html_of(reader(ada).get(f"/submit?from={job.pk}&args=--batch-size%2016"))

    assert f'href="/submit?from={job.pk}&amp;args=--batch-size%2016"' in page
    assert f'href="/submit?from={job.pk}&amp;gpu_memory_gib=16"' in page
    assert 'value="--batch-size 16"' in form or ">--batch-size 16<" in form
