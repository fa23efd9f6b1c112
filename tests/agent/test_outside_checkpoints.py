"""Checkpoints outside the checkpoint folder: recognised by what they are, kept or pointed out."""

import json
import os
import zipfile
from datetime import timedelta
from functools import partial

import pytest
from django.utils import timezone

from orchestrator.agent.checkpoints import CheckpointKeeper
from orchestrator.models import Attempt, Checkpoint, Job, JobState
from orchestrator.store.checkpoints.outside import OutsideWatch, read_unkept
from orchestrator.store.layout import JobFolder

written_ns = [0]


def save(path, text="weights"):
    """What ``torch.save`` writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", "never read")
        file.writestr("archive/data/0", text)
    written_ns[0] = max(written_ns[0], path.stat().st_mtime_ns) + 10_000_000
    os.utime(path, ns=(written_ns[0], written_ns[0]))
    return path


@pytest.fixture
def running(make_attempt, home):
    """A running attempt and its job's folder."""

    def make(**spec):
        attempt = (
            make_attempt(state=JobState.RUNNING, spec=spec) if spec else make_attempt(state=JobState.RUNNING)
        )
        folder = home.job(attempt.job_id)
        for path in (folder.work, folder.checkpoints, folder.attempt(1).root):
            path.mkdir(parents=True, exist_ok=True)
        return Attempt.objects.select_related("job").get(pk=attempt.pk), folder

    return make


def look(keeper):
    """One look that is not put off."""
    keeper.outside.watch._next_look_s = keeper.look_again_at = keeper.read_glob_at = 0
    keeper.collector.settle_s = 0
    keeper._try(partial(keeper._look, writer_alive=True))


def said(attempt):
    return [event.reason for event in attempt.job.events.all() if "checkpoint" in event.reason]


def test_a_job_that_names_no_files_has_its_checkpoints_kept_wherever_it_writes_them(running):
    attempt, folder = running()
    Attempt.objects.update(first_step_at=timezone.now() - timedelta(seconds=60))
    keeper = CheckpointKeeper(attempt)
    for text in ("one", "two"):
        save(folder.work / "out/ckpt.pt", text)
        look(keeper)

    assert Checkpoint.objects.filter(job=attempt.job).count() == 2
    assert said(attempt) == [
        "out/ckpt.pt looks like a checkpoint and is kept, though it lies outside the checkpoint folder."
    ]
    later = CheckpointKeeper(attempt)
    save(folder.work / "out/ckpt.pt", "three")
    look(later)
    assert Checkpoint.objects.filter(job=attempt.job).count() == 3
    assert len(said(attempt)) == 1


def test_model_downloaded_before_the_training_is_not_a_checkpoint(running):
    attempt, folder = running()
    keeper = CheckpointKeeper(attempt)
    save(folder.work / "pretrained.pt")
    look(keeper)

    assert (Checkpoint.objects.count(), said(attempt)) == (0, [])


def test_owner_of_a_job_that_names_other_files_is_told_once_what_is_not_kept(running):
    attempt, folder = running(checkpoint_glob="other/*.pt")
    keeper = CheckpointKeeper(attempt)
    for number in range(3):
        save(folder.work / "out/ckpt.pt", str(number))
        look(keeper)

    assert Checkpoint.objects.count() == 0
    [text] = said(attempt)
    assert text.startswith("out/ckpt.pt was written 2 times outside the checkpoint folder and is not kept;")
    assert "--checkpoint-glob 'out/*.pt'" in text
    [unkept] = read_unkept(folder, "other/*.pt")
    assert (unkept.path, unkept.times, unkept.glob) == ("out/ckpt.pt", 3, "out/*.pt")


def test_a_pattern_that_is_added_while_the_job_runs_counts_from_then_on(running):
    attempt, folder = running(checkpoint_glob="other/*.pt")
    keeper = CheckpointKeeper(attempt)
    save(folder.work / "out/ckpt.pt")
    look(keeper)
    fields = {**attempt.job.spec_fields, "checkpoint_glob": "other/*.pt, out/*.pt"}
    Job.objects.update(spec_fields=fields)
    look(keeper)

    assert Checkpoint.objects.get().size_bytes > 0
    assert read_unkept(folder, "other/*.pt, out/*.pt") == []


def test_a_folder_of_the_trainer_is_named_with_its_steps(running):
    _, folder = running()
    for step in (100, 200):
        path = save(folder.work / f"out/checkpoint-{step}/optimizer.pt").parent
        (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    watch = OutsideWatch(folder, 0)
    watch.look()

    [found] = watch.found.values()
    assert (found.glob, found.times) == ("out/checkpoint-*/**", 2)


@pytest.mark.parametrize(
    "path",
    [
        ".cache/huggingface/hub/pytorch_model.bin",
        "hf_cache/model.pt",
        "venv/lib/site-packages/x/weights.pt",
        "wandb/run/model.pt",
        "archive.jar",
    ],
)
def test_caches_and_other_zips_are_no_checkpoints(tmp_path, path):
    folder = JobFolder(tmp_path)
    save(folder.work / path)
    watch = OutsideWatch(folder, 0)
    watch.look()

    assert watch.found == {}


def test_what_came_with_the_code_is_no_checkpoint_of_the_run(tmp_path):
    folder = JobFolder(tmp_path)
    path = save(folder.work / "model.pt")
    watch = OutsideWatch(folder, path.stat().st_ctime_ns + 1)
    watch.look()

    assert watch.found == {}
