"""From a placed attempt to a running supervisor."""

import fcntl
import hashlib
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from orchestrator.facts.record import sentence_only
from orchestrator.jobs import datasets, lifecycle
from orchestrator.jobs.launch import launcher
from orchestrator.jobs.launch import record as launch_record
from orchestrator.models import Attempt, AttemptState, DatasetRoot, ExitKind, Job, JobArray, JobState, Network
from orchestrator.people import secrets
from orchestrator.spec.job_spec import GIB
from orchestrator.store.checkpoints.collector import Collector
from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.store.layout import Home, JobFolder
from orchestrator.supervisor.protocol.records import read_record, write_record
from orchestrator.supervisor.spawn import SpawnFailed, spawn
from tests.jobs.invariants import check_invariants
from tests.waiting import wait_until


@pytest.fixture
def placed(make_attempt, make_job, store_script) -> Callable[..., Attempt]:
    """An attempt that waits for its launch; keywords as those of ``make_job``."""

    def make(text: bytes = b"print('hello')\n", devices: Any = (), **fields: Any) -> Any:
        return make_attempt(make_job(bundle=store_script(text), **fields), devices=devices)

    return make


def prepare(attempt: Attempt) -> dict[str, Any]:
    """Everything but the start; the launch record."""
    launcher.prepare(Job.objects.select_related("pool").get(pk=attempt.job_id), attempt)
    return read_record(launcher.folder_of(attempt).launch) or {}


def again(attempt: Attempt) -> Attempt:
    """The next attempt of the same job on the same device."""
    device = attempt.leases.get().device
    lifecycle.end(
        attempt, lifecycle.Ending(kind=ExitKind.PREEMPTED, how=sentence_only(""), at=attempt.created_at)
    )
    job = Job.objects.get(pk=attempt.job_id)
    return lifecycle.start(job, [(device, None)], nonce="n", now=attempt.created_at)


def wait_for_exit(home: Home, attempt: Attempt) -> Any:
    path = home.job(attempt.job_id).attempt(attempt.number).exit
    wait_until(path.exists)
    return json.loads(path.read_text())


def write_zip(path: Path, text: str) -> Path:
    """What ``torch.save`` writes is a zip."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data", text * 1000)
    return path


def capture(folder: JobFolder, path: Path, step: int) -> Path:
    generation = GenerationStore(folder).capture([path], 1, step, lambda: True, settle_s=0)
    assert generation is not None
    return generation.folder


def remarks(attempt: Attempt) -> list[str]:
    events = Job.objects.get(pk=attempt.job_id).events.filter(actor="launcher")
    return [event.reason for event in events]


def test_the_record_says_what_to_run_and_where(placed, home):
    attempt = placed(
        spec={"args": ["--out", "{output_dir}", "{checkpoint}"], "env": {"A": "1"}, "memory_gib": 2}
    )

    record = prepare(attempt)

    folder = home.job(attempt.job_id)
    assert (record["number"], record["nonce"], record["ranks"]) == (1, attempt.nonce, 1)
    assert (record["script"], record["python"]) == ("train.py", sys.executable)
    assert record["args"] == ["--out", str(folder.output), "{checkpoint}"]
    cache = home.cache_of(attempt.job.owner_id)
    assert record["env"] == {
        "A": "1",
        "HF_HOME": str(cache / "huggingface"),
        "TORCH_HOME": str(cache / "torch"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "XDG_CACHE_HOME": str(cache / "xdg"),
        "BERTH_CHECKPOINT_DIR": str(folder.checkpoints),
        "BERTH_OUTPUT_DIR": str(folder.output),
        "BERTH_METRICS_FILE": str(folder.attempt(1).metrics),
        "CUDA_VISIBLE_DEVICES": "",
    }
    assert record["limits"]["memory_bytes"] == 2 * GIB
    assert record["sandbox"]["network"] == "host"
    assert (folder.work / "train.py").read_bytes() == b"print('hello')\n"


def test_a_member_of_an_array_learns_its_index(placed):
    array = JobArray.objects.create(count=5, created_at=timezone.now())
    attempt = placed(spec={"args": ["--seed", "{array_index}"]}, array=array, array_index=4)

    record = prepare(attempt)

    assert record["env"]["BERTH_ARRAY_INDEX"] == "4"
    assert record["args"] == ["--seed", "4"]


def test_job_sees_only_its_gpus_and_the_memory_it_claimed(make_device, placed, make_pool):
    pool = make_pool(network=Network.NONE)
    gpu = make_device(0, id="GPU-a", kind="gpu", memory_gib=80, nodes=["/dev/nvidia0"], pool=pool)
    attempt = placed(devices=[gpu])
    attempt.leases.update(memory_bytes=20 * GIB)

    record = prepare(attempt)

    assert record["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert record["device_nodes"] == ["/dev/nvidia0"]
    assert record["gpu_memory_fraction"] == 19.25 / 80  # the CUDA context has its part of the claim
    assert record["sandbox"]["network"] == "none"


def test_job_with_a_limit_above_its_claim_may_allocate_what_nobody_else_claims(
    make_device, make_attempt, placed
):
    gpu = make_device(0, id="GPU-a", kind="gpu", memory_gib=80)
    spec = {"gpu_memory_gib": 20, "gpu_memory_limit_gib": 50}
    attempt = placed(devices=[gpu], spec=spec)
    attempt.leases.update(memory_bytes=20 * GIB)

    alone = prepare(attempt)["gpu_memory_fraction"]
    make_attempt(devices=[gpu], memory_bytes=45 * GIB)
    beside = prepare(attempt)["gpu_memory_fraction"]
    make_attempt(devices=[gpu], memory_bytes=15 * GIB)
    full = prepare(attempt)["gpu_memory_fraction"]

    assert (alone, beside, full) == (49.25 / 80, 34.25 / 80, 19.25 / 80)


def test_model_job_gets_its_steps_and_its_own_options_win(placed):
    options = ["--epochs", "3"]
    told = prepare(placed(spec={"kind": "model", "total_steps": 20, "args": options}))["args"]
    untold = prepare(placed(spec={"kind": "model", "args": options}))["args"]

    assert told == ["train.py", "--epochs", "20", "--max-steps", "20", "--epochs", "3"]
    assert untold == ["train.py", "--epochs", "3"]


def test_a_script_job_gets_only_its_own_arguments(placed):
    assert prepare(placed(spec={"total_steps": 20, "args": ["--lr", "1"]}))["args"] == ["--lr", "1"]


@pytest.mark.parametrize(("claim_gib", "left_gib"), [(20, 19.25), (3, 2.25), (2, 1.5), (1, 0.75)])
def test_cuda_context_takes_at_most_a_quarter_of_a_claim(claim_gib, left_gib):
    assert launch_record.allocator_bytes(claim_gib * GIB) == left_gib * GIB


def test_a_whole_device_has_no_limit_of_memory(placed):
    assert prepare(placed())["gpu_memory_fraction"] is None


@pytest.fixture
def numbers(home: Home, ada) -> Path:
    file = home.root / "data" / "a.txt"
    file.parent.mkdir(parents=True)
    file.write_text("1 2 3")
    DatasetRoot.objects.create(name="data", path=str(file.parent))
    datasets.register(ada, name="my-numbers", version="1", root="data", path="a.txt")
    return file


def test_datasets_reach_arguments_environment_and_sandbox(placed, numbers):
    record = prepare(placed(spec={"datasets": ["my-numbers@1"], "args": ["{dataset:my-numbers}"]}))

    assert record["args"] == [str(numbers)]
    assert record["env"]["BERTH_DATASET_MY_NUMBERS"] == str(numbers)
    assert record["read_only"] == [str(numbers)]


@pytest.mark.parametrize("word", ["{dataset:my-numbers@1}", "{model:my-numbers@1}", "{model:my-numbers}"])
def test_an_argument_may_name_the_version_of_the_only_one(placed, numbers, word):
    record = prepare(placed(spec={"datasets": ["my-numbers@1"], "args": [f"--data={word}"]}))

    assert record["args"] == [f"--data={numbers}"]


def test_a_dataset_that_is_gone_fails_the_job_with_its_name(placed, numbers):
    attempt = placed(spec={"datasets": ["my-numbers@1"]})
    numbers.unlink()

    launcher.start(attempt)

    job = Job.objects.get()
    assert job.state == JobState.FAILED
    assert job.reason == "Could not start: The dataset my-numbers@1 is not there: root data, path a.txt."
    check_invariants()


def test_b36_a_dataset_that_became_a_link_out_of_its_root_is_not_opened(placed, numbers):
    attempt = placed(spec={"datasets": ["my-numbers@1"]})
    numbers.unlink()
    numbers.symlink_to("/etc/passwd")

    launcher.start(attempt)

    assert "leads out of its root" in Job.objects.get().reason


def test_an_interpreter_that_is_gone_fails_the_job(placed, make_pool):
    make_pool(pythons={"old": "/nowhere/python"})

    launcher.start(placed(spec={"python": "old"}))

    assert "interpreter 'old' is no longer there" in Job.objects.get().reason


def test_f58_folder_that_cannot_be_made_is_retried_and_then_reported(placed, home):
    attempt = placed()
    folder = home.job(attempt.job_id)
    folder.root.mkdir(parents=True)
    folder.checkpoints.write_text("in the way")

    launcher.start(attempt)

    job = Job.objects.get()
    assert (job.state, job.launch_failures) == (JobState.QUEUED, 1)
    assert job.reason.startswith("Could not prepare the job's folder:")


def test_f53_launch_on_a_full_disk_is_retried_until_there_is_room(placed):
    attempt = placed()
    device = attempt.leases.get().device
    waits_s = []
    for _ in range(6):  # twice what a job has for launches that fail otherwise
        full = lifecycle.Ending(
            kind=ExitKind.INFRA,
            how=sentence_only("No space left on device."),
            at=attempt.created_at,
            no_room=True,
        )
        job = lifecycle.end(attempt, full)
        assert job.state == JobState.BACKOFF, job.reason
        assert "until there is room" in job.reason
        waits_s.append((job.next_try_at - attempt.created_at).total_seconds())
        lifecycle.back_to_queue(job, now=attempt.created_at)
        attempt = lifecycle.start(
            Job.objects.get(pk=job.pk), [(device, None)], nonce="n", now=attempt.created_at
        )

    launcher.start(attempt)

    assert waits_s == sorted(waits_s)
    assert waits_s[0] < 10 < 60 < waits_s[-1]
    assert Job.objects.get().state == JobState.RUNNING


def test_a_job_stopped_before_its_launch_never_runs(placed, home):
    attempt = placed()
    lifecycle.preempt(attempt.job, by="root")

    launcher.start(attempt)

    assert Job.objects.get().state == JobState.QUEUED
    assert not home.job(attempt.job_id).attempt(1).launch.exists()


def test_a_script_runs_and_its_job_is_running(placed, home):
    attempt = placed(b"import os; print('rank', os.environ['RANK'])\n")

    launcher.start(attempt)

    assert Job.objects.get().state in {JobState.RUNNING}
    assert wait_for_exit(home, attempt)["kind"] == "ok"
    assert home.job(attempt.job_id).attempt(1).log(0).read_text() == "rank 0\n"


def test_f08_repeated_launch_starts_nothing(placed, home):
    attempt = placed(b"import os; open(os.environ['BERTH_OUTPUT_DIR'] + '/runs', 'a').write('x')\n")
    copies = [Attempt.objects.get(pk=attempt.pk) for _ in range(3)]
    for each in copies:
        launcher.start(each)
    wait_for_exit(home, attempt)

    # Even straight at the folder, as a worker would that died before it could say so.
    spawn(home.job(attempt.job_id).attempt(1), python=sys.executable, secrets={})

    assert (home.job(attempt.job_id).output / "runs").read_text() == "x"


def test_values_that_a_script_gives_to_its_tracker_come_out_of_its_sandbox(placed, home):
    attempt = placed(
        b"import os\nos.mkdir('trackio')\n"
        b"open('trackio/run.py', 'w').write('class Run:\\n    def log(self, metrics, step): pass\\n')\n"
        b"from trackio.run import Run\nRun().log({'loss': 0.5}, 3)\n"
    )
    launcher.start(attempt)

    assert wait_for_exit(home, attempt)["kind"] == "ok"
    lines = home.job(attempt.job_id).attempt(1).metrics.read_text().splitlines()
    assert [json.loads(line).get("loss") for line in lines] == [None, 0.5]


def test_a_launch_at_work_is_seen_and_ends_with_its_process(placed, home):
    attempt = placed()
    assert not launcher.is_preparing(attempt)

    with launcher.preparing(launcher.folder_of(attempt)):
        assert launcher.is_preparing(attempt)

    assert not launcher.is_preparing(attempt)


def test_late_supervisor_of_a_forestalled_attempt_exits(placed, home):
    attempt = placed(b"import os; open(os.environ['BERTH_OUTPUT_DIR'] + '/runs', 'a').write('x')\n")
    prepare(attempt)
    folder = launcher.folder_of(attempt)

    assert launcher.forestall(attempt, sentence_only("Too late."))

    with suppress(SpawnFailed):  # it may also say so
        spawn(folder, python=sys.executable, secrets={})
    assert not folder.supervisor.exists()
    assert (read_record(folder.exit) or {})["detail"] == "Too late."


def test_a_living_supervisor_cannot_be_forestalled(placed):
    attempt = placed()
    prepare(attempt)
    folder = launcher.folder_of(attempt)
    with folder.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        assert not launcher.forestall(attempt, sentence_only("Too late."))

    assert not folder.exit.exists()


# --- checkpoints


def test_the_newest_checkpoint_is_put_back_and_named(placed, home):
    attempt = placed(spec={"args": ["--lr", "1"], "resume_args": ["--resume", "{checkpoint}"]})
    assert prepare(attempt)["args"] == ["--lr", "1"]
    folder = home.job(attempt.job_id)
    path = write_zip(folder.checkpoints / "last.pt", "ten")
    whole = path.read_bytes()
    capture(folder, path, 10)
    path.write_bytes(whole[:100])  # killed while it saved again

    second = again(attempt)
    record = prepare(second)

    assert path.read_bytes() == whole
    assert record["args"] == ["--lr", "1", "--resume", str(path)]
    assert record["env"]["BERTH_RESUME_FROM"] == str(path)
    second.refresh_from_db()
    assert (second.resumed_from_step, second.resumed_from) == (10, "generation 1")


def test_f54_damaged_checkpoint_is_skipped_and_noted(placed, home):
    attempt = placed()
    prepare(attempt)
    folder = home.job(attempt.job_id)
    capture(folder, write_zip(folder.checkpoints / "last.pt", "ten"), 10)
    bad = capture(folder, write_zip(folder.checkpoints / "last.pt", "twenty"), 20)
    kept = next(file for file in bad.iterdir() if file.name != "manifest.json")
    kept.chmod(0o600)
    os.truncate(kept, 50)

    second = again(attempt)
    prepare(second)

    second.refresh_from_db()
    assert second.resumed_from_step == 10
    assert len(remarks(second)) == 1
    assert remarks(second)[0].startswith("Fell back from step 20 to step 10: ")


@pytest.mark.parametrize(("begin_anew", "state"), [(True, JobState.STARTING), (False, JobState.FAILED)])
def test_f57_job_whose_checkpoints_are_all_damaged_fails_unless_it_may_restart(
    placed, home, begin_anew, state
):
    attempt = placed(spec={"begin_anew": begin_anew})
    prepare(attempt)
    folder = home.job(attempt.job_id)
    only = capture(folder, write_zip(folder.checkpoints / "last.pt", "ten"), 10)
    kept = next(file for file in only.iterdir() if file.name != "manifest.json")
    kept.chmod(0o600)
    os.truncate(kept, 50)
    second = again(attempt)

    if begin_anew:
        prepare(second)
    else:
        launcher.start(second)

    job = Job.objects.get(pk=attempt.job_id)
    assert job.state == state
    assert remarks(second)[0].startswith("Fell back from step 10 to the beginning: ")
    if not begin_anew:
        assert job.reason.startswith("Could not start: all its checkpoints are damaged")
        check_invariants()


def test_f57_job_whose_checkpoints_are_all_damaged_restarts_and_notes_it(placed, home):
    attempt = placed()
    prepare(attempt)
    folder = home.job(attempt.job_id)
    for step in (10, 20):
        bad = capture(folder, write_zip(folder.checkpoints / "last.pt", f"step {step}"), step)
        kept = next(file for file in bad.iterdir() if file.name != "manifest.json")
        kept.chmod(0o600)
        os.truncate(kept, 50)

    second = again(attempt)
    prepare(second)

    second.refresh_from_db()
    assert second.resumed_from_step is None
    assert [said.partition(":")[0] for said in remarks(second)] == [
        "Fell back from step 20 to the beginning",
        "Fell back from step 10 to the beginning",
    ]


def test_a_job_whose_checkpoints_are_all_damaged_does_not_say_that_it_kept_none(placed, home):
    attempt = placed()
    prepare(attempt)
    folder = home.job(attempt.job_id)
    for step in (10, 20, 30):
        bad = capture(folder, write_zip(folder.checkpoints / "last.pt", f"step {step}"), step)
        kept = next(file for file in bad.iterdir() if file.name != "manifest.json")
        kept.chmod(0o600)
        os.truncate(kept, 50)

    second = again(attempt)
    prepare(second)
    lifecycle.run(second, started_at=timezone.now())

    said = Job.objects.get(pk=attempt.job_id).reason
    assert said.startswith(
        "Attempt 2 runs from the beginning: 3 checkpoints were kept, and all are damaged (the newest: "
    )
    assert "50 bytes instead of" in said


def save_folder(folder: JobFolder, name: str) -> Path:
    """As the Hugging Face Trainer does it."""
    write_zip(folder.checkpoints / name / "optimizer.pt", name)
    write_zip(folder.checkpoints / name / "rng_state.pth", name)
    (folder.checkpoints / name / "trainer_state.json").write_text(
        json.dumps({"global_step": int(name.partition("-")[2])})
    )
    return folder.checkpoints / name


def collect(folder: JobFolder) -> None:
    collector = Collector(folder, 1, None, lambda _: None)
    collector.settle_s = 0
    look = collector.take(lambda: True, last=False)
    assert look.taken, look


def test_a_checkpoint_that_is_a_folder_is_named_as_the_folder_and_put_back_as_a_whole(placed, home):
    attempt = placed(spec={"resume_args": ["--from", "{checkpoint}", "--in", "{checkpoint_folder}"]})
    prepare(attempt)
    folder = home.job(attempt.job_id)
    path = save_folder(folder, "checkpoint-200")
    collect(folder)
    torn = write_zip(folder.checkpoints / "checkpoint-300/optimizer.pt", "half of it")
    shutil.rmtree(path)

    second = again(attempt)
    record = prepare(second)

    assert record["args"] == ["--from", str(path), "--in", str(path)]
    assert record["env"]["BERTH_RESUME_FROM"] == str(path)
    assert sorted(each.name for each in path.iterdir()) == [
        "optimizer.pt",
        "rng_state.pth",
        "trainer_state.json",
    ]
    assert not torn.exists(), "the trainer would take the newest folder that it finds"
    assert (folder.checkpoints / "checkpoint-300.torn").is_dir()
    second.refresh_from_db()
    assert second.resumed_from_step == 200


def test_the_folder_of_a_checkpoint_that_is_a_file_is_the_one_it_lies_in(placed, home):
    attempt = placed(spec={"resume_args": ["{checkpoint}", "{checkpoint_folder}"]})
    prepare(attempt)
    folder = home.job(attempt.job_id)
    path = write_zip(folder.checkpoints / "run/step_100.pt", "ten")
    collect(folder)

    assert prepare(again(attempt))["args"] == [str(path), str(path.parent)]


@pytest.mark.parametrize("kept", [False, True])
def test_half_written_checkpoint_is_set_aside_also_beside_a_whole_one(placed, home, kept):
    attempt = placed()
    prepare(attempt)
    folder = home.job(attempt.job_id)
    if kept:
        capture(folder, write_zip(folder.checkpoints / "step10.pt", "ten"), 10)
    torn = write_zip(folder.checkpoints / "step20.pt", "twenty")
    os.truncate(torn, 100)

    prepare(again(attempt))

    assert not torn.exists()
    assert torn.with_name("step20.pt.torn").exists()
    assert (folder.checkpoints / "step10.pt").exists() is kept


def save_pair(folder: JobFolder, step: int) -> tuple[Path, Path]:
    model = write_zip(folder.checkpoints / f"model_step_{step}.pt", f"model {step}")
    return model, write_zip(folder.checkpoints / f"optim_step_{step}.pt", f"optim {step}")


@pytest.mark.parametrize("is_torn", [False, True], ids=["not begun", "cut short"])
def test_a_model_whose_optimizer_was_not_saved_before_the_kill_is_set_aside(placed, home, is_torn):
    """A script that loads the newest file of each would mix two steps, or fail at every retry."""
    attempt = placed()
    prepare(attempt)
    folder = home.job(attempt.job_id)
    for step in (5, 10):
        save_pair(folder, step)
        collect(folder)
    model, optimizer = save_pair(folder, 20)
    os.truncate(optimizer, 100)
    if not is_torn:
        optimizer.unlink()
    whole = model.read_bytes()
    earlier = model.with_name("model_step_20.pt.torn")
    earlier.write_text("of an earlier kill")

    second = again(attempt)
    prepare(second)

    left = sorted(path.name for path in folder.checkpoints.glob("*.pt"))
    assert left == ["model_step_10.pt", "model_step_5.pt", "optim_step_10.pt", "optim_step_5.pt"]
    assert model.with_name("model_step_20.pt.torn").read_bytes() == whole
    assert model.with_name("model_step_20.pt.1.torn").read_text() == "of an earlier kill"
    assert (
        "model_step_20.pt lacks files that every kept checkpoint has; renamed to model_step_20.pt.torn."
        in remarks(second)
    )


def test_a_newer_save_of_fewer_ranks_stays_for_the_script(placed, home):
    """A job that shrinks from four devices to two saves two files a step: nothing is missing."""
    attempt = placed()
    prepare(attempt)
    folder = home.job(attempt.job_id)
    for rank in range(4):
        write_zip(folder.checkpoints / f"model_step_10_rank_{rank}.pt", f"ten {rank}")
    collect(folder)
    newer = [
        write_zip(folder.checkpoints / f"model_step_20_rank_{rank}.pt", f"twenty {rank}") for rank in range(2)
    ]

    second = again(attempt)
    prepare(second)

    assert all(path.exists() for path in newer)
    assert remarks(second) == []


def test_one_kept_save_does_not_show_what_each_save_has(placed, home):
    """A script may save its optimizer every fifth epoch only, the first of them included."""
    attempt = placed()
    prepare(attempt)
    folder = home.job(attempt.job_id)
    save_pair(folder, 0)
    collect(folder)
    newer = write_zip(folder.checkpoints / "model_step_1.pt", "model 1")

    second = again(attempt)
    prepare(second)

    assert newer.exists()
    assert remarks(second) == []


def test_only_the_newest_two_halves_of_a_name_are_left_for_a_job_that_is_killed_often(placed, home):
    attempt = placed()
    prepare(attempt)
    folder = home.job(attempt.job_id)
    for step in (5, 10):
        save_pair(folder, step)
        collect(folder)
    model, optimizer = save_pair(folder, 20)
    optimizer.unlink()
    model.with_name("model_step_20.pt.1.torn").write_text("of the first kill")
    model.with_name("model_step_20.pt.torn").write_text("of the second kill")

    prepare(again(attempt))

    assert len(list(folder.checkpoints.glob("*.torn"))) == 2
    assert model.with_name("model_step_20.pt.1.torn").read_text() == "of the second kill"


@pytest.mark.parametrize("own", ["file", "folder"])
def test_what_the_script_named_like_a_cut_save_stays_and_stops_no_retry(placed, home, own):
    attempt = placed()
    prepare(attempt)
    folder = home.job(attempt.job_id)
    capture(folder, write_zip(folder.checkpoints / "step10.pt", "ten"), 10)
    torn = write_zip(folder.checkpoints / "step20.pt", "twenty")
    os.truncate(torn, 100)
    unfinished = write_zip(folder.checkpoints / "checkpoint-300/optimizer.pt", "half of it").parent
    file, inner = (torn, unfinished) if own == "folder" else (unfinished, torn)
    of_script = file.with_name(f"{file.name}.torn")
    if own == "folder":
        of_script = write_zip(of_script / "notes.txt", "of the script")
    else:
        of_script.write_text("of the script")
    earlier = inner.with_name(f"{inner.name}.torn")

    second = again(attempt)
    prepare(second)

    assert of_script.exists()
    assert not torn.exists()
    assert not unfinished.exists()
    assert file.with_name(f"{file.name}.1.torn").exists()
    assert earlier.exists()
    assert any(f"{file.name}.1.torn" in each for each in remarks(second))


def test_the_folder_set_aside_at_an_earlier_kill_is_not_replaced(placed, home):
    attempt = placed()
    prepare(attempt)
    folder = home.job(attempt.job_id)
    earlier = write_zip(folder.checkpoints / "checkpoint-300.torn/optimizer.pt", "of an earlier kill")
    write_zip(folder.checkpoints / "checkpoint-300/optimizer.pt", "half of it")
    whole = earlier.read_bytes()

    prepare(again(attempt))

    assert (folder.checkpoints / "checkpoint-300.1.torn/optimizer.pt").read_bytes() == whole
    assert (folder.checkpoints / "checkpoint-300.torn/optimizer.pt").exists()


def test_a_newer_save_that_lacks_nothing_stays_for_the_script(placed, home):
    attempt = placed()
    prepare(attempt)
    folder = home.job(attempt.job_id)
    save_pair(folder, 10)
    write_zip(folder.checkpoints / "best_step_10.pt", "best")
    collect(folder)
    save_pair(folder, 20)
    collect(folder)
    save_pair(folder, 30)
    other = write_zip(folder.output / "report_step_30.pt", "no part of any checkpoint")

    second = again(attempt)
    prepare(second)

    assert len(list(folder.checkpoints.glob("*.pt"))) == 7
    assert other.exists()
    assert remarks(second) == []


def test_a_retry_that_resumes_gets_its_parents_checkpoints_as_its_own(placed, home, make_job):
    parent = placed()
    prepare(parent)
    theirs = home.job(parent.job_id)
    capture(theirs, write_zip(theirs.checkpoints / "last.pt", "ten"), 10)
    attempt = placed(resume_job=parent.job, spec={"resume_args": ["{checkpoint}"]})

    record = prepare(attempt)

    ours = home.job(attempt.job_id)
    assert record["args"] == [str(ours.checkpoints / "last.pt")]
    assert (ours.checkpoints / "last.pt").read_bytes() == (theirs.checkpoints / "last.pt").read_bytes()


def test_a_stop_is_handed_over_once_there_is_a_folder(placed):
    attempt = placed()
    assert not launcher.stop(attempt, reason="cancel", grace_s=3)
    prepare(attempt)

    assert launcher.stop(attempt, reason="cancel", grace_s=3)

    orders = [read_record(path) for path in launcher.folder_of(attempt).orders.iterdir()]
    assert orders == [{"v": 1, "order": "stop", "reason": "cancel", "grace_s": 3, "saved": False}]


def test_launcher_that_dies_after_preparing_leaves_a_launching_attempt(placed):
    attempt = placed()
    lifecycle.claim_launch(attempt, attempt.created_at)
    write_record(_made(attempt) / "launch.json", {})

    launcher.start(attempt)

    attempt.refresh_from_db()
    assert attempt.state == AttemptState.LAUNCHING


def _made(attempt: Attempt) -> Path:
    root = launcher.folder_of(attempt).root
    root.mkdir(parents=True)
    return root


def test_a_secret_reaches_the_process_and_no_file_of_the_attempt(placed, home):
    script = b"import os, hashlib; print(hashlib.sha256(os.environ['HF_TOKEN'].encode()).hexdigest())\n"
    attempt = placed(script, spec={"secrets": ["HF_TOKEN"]})
    secrets.keep(attempt.job.owner, "HF_TOKEN", "quiet-value")

    launcher.start(attempt)
    ended = wait_for_exit(home, attempt)

    assert ended["kind"] == "ok", ended
    root = home.job(attempt.job_id).root
    said = (root / "attempts/1/logs/rank0.log").read_text()
    assert hashlib.sha256(b"quiet-value").hexdigest() in said
    files = [path for path in root.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"quiet-value" in path.read_bytes()]


def test_a_secret_that_is_gone_fails_the_job_with_a_sentence(placed, home):
    attempt = placed(spec={"secrets": ["HF_TOKEN"]})

    launcher.start(attempt)

    attempt.refresh_from_db()
    assert attempt.kind == ExitKind.INFRA
    assert "HF_TOKEN no longer exists" in attempt.exit_detail
    assert Job.objects.get(pk=attempt.job_id).state == JobState.FAILED
