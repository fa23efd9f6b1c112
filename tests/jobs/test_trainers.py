"""Which trainers may take a checkpoint by themselves, and what the owners of other jobs learn to add."""

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.facts.events import Happened
from orchestrator.facts.record import sentence_only
from orchestrator.jobs import lifecycle
from orchestrator.jobs.launch import launcher, trainers
from orchestrator.models import Attempt, ExitKind, Job, JobState, Lease
from orchestrator.store.bundles import bundles
from orchestrator.store.checkpoints.collector import Collector
from orchestrator.store.layout import Home, JobFolder
from orchestrator.supervisor.protocol.records import read_record
from training.resuming.trainers import TRAINERS


def prepare(attempt: Attempt) -> dict[str, Any]:
    """Everything but the start; the environment of the run."""
    launcher.prepare(Job.objects.select_related("pool").get(pk=attempt.job_id), attempt)
    record: dict[str, Any] = read_record(launcher.folder_of(attempt).launch) or {}
    environment: dict[str, Any] = record["env"]
    return environment


@pytest.fixture
def advice(make_attempt, make_job, store_script) -> Callable[..., list[str]]:
    """Launch a script; what its history tells to add."""

    def advice(text: str, bundle: str = "", **spec: Any) -> list[str]:
        attempt = make_attempt(make_job(bundle=bundle or store_script(text.encode()), spec=spec))
        prepare(attempt)
        codes = (Happened.RESUME_OPTION, Happened.RESUME_CODE)
        events = attempt.job.events.filter(kind__in=codes).values_list("data", flat=True)
        return [str(data.get("words") or data["line"]) for data in events]

    return advice


TAKES_PATH = "parser.add_argument('--resume', default='', type=str, metavar='PATH', help='path')\n"
CODE_OF = {trainer.name: trainer.add for trainer in TRAINERS}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TAKES_PATH, ["--resume {checkpoint}"]),
        (
            'parser.add_argument(\n    "--resume_from_checkpoint",\n    type=str)\n',
            ["--resume_from_checkpoint {checkpoint}"],
        ),
        ("parser.add_argument('-r', '--resume-from')\n", ["--resume-from {checkpoint}"]),
        ("parser.add_argument('--resume', action='store_true')\n", ["--resume"]),
        ("parser.add_argument('--resume', help='go on (if it can)', action='store_true')\n", ["--resume"]),
        (TAKES_PATH + "parser.add_argument('--fast', action='store_true')\n", ["--resume {checkpoint}"]),
        ("from accelerate import Accelerator\n" + TAKES_PATH, ["--resume {checkpoint}"]),
        ("from accelerate import Accelerator\n", [CODE_OF["Accelerate"]]),
        ("import accelerate\naccelerator = accelerate.Accelerator()\n", [CODE_OF["Accelerate"]]),
        ("import os, keras\nmodel.fit(x, y)\n", [CODE_OF["Keras"]]),
        ("from stable_baselines3 import PPO\nmodel.learn(100)\n", [CODE_OF["Stable-Baselines3"]]),
        ("import deepspeed\nengine = deepspeed.initialize(model=model)\n", [CODE_OF["DeepSpeed"]]),
        ("import torch\ntorch.save(model.state_dict(), 'a.pt')\n", [CODE_OF["PyTorch"]]),
    ],
)
def test_owner_learns_what_lets_a_script_resume(advice, text, words):
    assert advice(text) == words


@pytest.mark.parametrize(
    "text",
    [
        "print('step 1 loss 0.5')\n",
        "from transformers import Trainer, TrainingArguments\n" + TAKES_PATH,
        "import lightning as L\nL.Trainer().fit(model)\nimport torch\ntorch.save(model, 'a.pt')\n",
        "from ultralytics import YOLO\nYOLO('a.yaml').train()\n",
        "import torch\ntorch.save(model, 'a.pt')\nmodel = torch.load('a.pt')\n",
        "import keras\nmodel.fit(x, callbacks=[keras.callbacks.BackupAndRestore('backup')])\n",
        "import os\npath = os.environ.get('BERTH_RESUME_FROM')\n" + TAKES_PATH,
        "from training import Checkpointer\nimport torch\ntorch.save(model, 'a.pt')\n",
        "import torch\nmodel = torch.nn.Linear(1, 1)\n",
        "(" * 10_000,
    ],
)
def test_script_that_resumes_or_saves_nothing_gets_no_advice(advice, text):
    assert advice(text) == []


def test_owner_who_said_how_to_resume_gets_no_advice(advice):
    assert advice(TAKES_PATH, resume_args=["--resume", "{checkpoint}"]) == []
    assert advice(TAKES_PATH, checkpoint_glob="out/*.pt") == []


def archive(home: Home, **files: str) -> str:
    """Keep an archive in the bundle store; returns its hash."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, text in files.items():
            file.writestr(f"{name.replace('__', '/')}.py", text)
    content.seek(0)
    return bundles.store_archive(home.bundles, content).sha256


def test_modules_that_a_script_imports_are_read_as_well(advice, home):
    bundle = archive(
        home,
        run="from lib.options import parse\n" + "".join(f"import package{each}\n" for each in range(90)),
        lib__options="from .inner import add\n",
        lib__inner=TAKES_PATH,
        unrelated="parser.add_argument('--resume-from')\n",
    )

    assert advice("", bundle, entrypoint="run.py") == ["--resume {checkpoint}"]
    assert advice("", bundle, module="lib.inner", entrypoint=None) == ["--resume {checkpoint}"]
    assert advice("", bundle, command=["python", "unrelated.py"], entrypoint=None) == [
        "--resume-from {checkpoint}"
    ]


def test_advice_is_given_once(make_attempt, make_job, store_script):
    attempt = make_attempt(make_job(bundle=store_script(TAKES_PATH.encode())))
    for _ in range(2):  # the worker died after the first
        prepare(attempt)

    assert attempt.job.events.of(Happened.RESUME_OPTION).count() == 1


# --- which training wrote a checkpoint


def again(attempt: Attempt) -> Attempt:
    """The next attempt of the same job on the same device."""
    device = attempt.leases.get().device
    ending = lifecycle.Ending(kind=ExitKind.PREEMPTED, how=sentence_only(""), at=attempt.created_at)
    lifecycle.end(attempt, ending)
    job = Job.objects.get(pk=attempt.job_id)
    return lifecycle.start(job, [(device, None)], nonce="n", now=attempt.created_at)


def save(folder: JobFolder, name: str = "checkpoint-200") -> Path:
    """A folder as Hugging Face's Trainer saves it, kept by Berth."""
    path = folder.checkpoints / name
    path.mkdir(parents=True)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": 200}))
    collector = Collector(folder, 1, None, lambda _: None)
    collector.settle_s = 0
    assert collector.take(lambda: True, last=False).taken
    return path


def note(folder: JobFolder, number: int, *began_ns: int) -> None:
    """What the rank of an attempt notes when its trainings begin."""
    path = folder.attempt(number).logs / "rank0.trainings"
    path.write_text("".join(f"{each}\n" for each in began_ns))


@pytest.fixture
def started(make_attempt, make_job, store_script) -> Callable[..., Attempt]:
    def start(**spec: Any) -> Attempt:
        attempt: Attempt = make_attempt(make_job(bundle=store_script(), spec=spec))
        prepare(attempt)
        return attempt

    return start


def resumes(attempt: Attempt, home: Home, *began: tuple[str, int]) -> bool:
    """Whether trainers may resume after an attempt whose trainings began so long (ns) before or after its save."""
    folder = home.job(attempt.job_id)
    written_ns = (save(folder) / "trainer_state.json").stat().st_mtime_ns
    note(folder, 1, *(written_ns + (ns if when == "after" else -ns) for when, ns in began))
    environment = prepare(again(attempt))
    assert "BERTH_RESUME_FROM" in environment
    return "BERTH_RESUME_TRAINER" in environment


def test_first_training_continues_from_what_it_saved(started, home):
    assert resumes(started(), home, ("before", 1))


def test_training_that_was_over_keeps_its_own_checkpoint(started, home):
    assert resumes(started(), home, ("before", 9), ("after", 9))


def test_checkpoint_of_a_later_training_is_not_given_to_the_first(started, home):
    assert not resumes(started(), home, ("before", 9), ("before", 5))


def test_without_a_known_trainer_nothing_is_given(started, home):
    assert not resumes(started(), home)


def test_owner_who_resumes_himself_is_not_helped(started, home):
    assert not resumes(started(resume_args=["--mine"]), home, ("before", 9))


def test_attempt_that_saved_nothing_changes_nothing(started, home):
    attempt = started()
    folder = home.job(attempt.job_id)
    written_ns = (save(folder) / "trainer_state.json").stat().st_mtime_ns
    note(folder, 1, written_ns - 9)
    second = again(attempt)
    prepare(second)
    note(folder, 2, written_ns + 20, written_ns + 30)

    assert "BERTH_RESUME_TRAINER" in prepare(again(second))


def fail(attempt: Attempt, *, last_step: int | None = None) -> Job:
    """The attempt's script raises, after this step."""
    Attempt.objects.filter(pk=attempt.pk).update(last_step=last_step)
    ending = lifecycle.Ending(
        kind=ExitKind.USER_ERROR,
        how=sentence_only("It raised."),
        at=attempt.created_at,
        not_resumable=trainers.failed_on_checkpoint(attempt),
    )
    lifecycle.end(attempt, ending)
    return Job.objects.get(pk=attempt.job_id)


def resumed(started: Callable[..., Attempt], home: Home) -> Attempt:
    """A second attempt, whose trainer got the checkpoint of step 200."""
    first = started()
    assert resumes(first, home, ("before", 9))
    second = Attempt.objects.get(job_id=first.job_id, number=2)
    Attempt.objects.filter(pk=second.pk).update(resumed_from_step=200)
    return second


@pytest.mark.parametrize("last_step", [None, 200])
def test_trainer_that_fails_on_its_checkpoint_is_retried_without_it(started, home, last_step):
    attempt = resumed(started, home)

    job = fail(attempt, last_step=last_step)

    assert job.state == JobState.BACKOFF
    assert "without giving the trainer its checkpoint" in job.reason
    lifecycle.back_to_queue(job, now=attempt.created_at)
    device = Lease.objects.get(attempt=attempt).device
    third = lifecycle.start(job, [(device, None)], nonce="n", now=attempt.created_at)
    environment = prepare(third)
    assert "BERTH_RESUME_FROM" in environment
    assert "BERTH_RESUME_TRAINER" not in environment
    assert fail(third).state == JobState.FAILED


def test_script_that_fails_after_it_resumed_is_not_retried(started, home):
    assert fail(resumed(started, home), last_step=201).state == JobState.FAILED


def test_script_that_fails_without_a_checkpoint_is_not_retried(started):
    assert fail(started()).state == JobState.FAILED


def test_notes_that_a_script_forged_are_harmless(started, home):
    attempt = started()
    folder = home.job(attempt.job_id)
    save(folder)
    notes = folder.attempt(1).logs / "rank0.trainings"
    for forged in (b"", b"\xff nothing", b"-1\n", b"9" * 200):
        notes.write_bytes(forged)
        assert "BERTH_RESUME_TRAINER" not in prepare(attempt)
    notes.unlink()
    os.mkfifo(notes)
    assert "BERTH_RESUME_TRAINER" not in prepare(attempt)


def prepare_of(started: Callable[..., Attempt], **spec: Any) -> dict[str, Any]:
    return prepare(started(**spec))
