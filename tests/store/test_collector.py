"""Other people's checkpoints, as their trainers lay them out: each is kept by itself, and names what resumes it."""

import io
import json
import os
import time
import zipfile

import pytest

from orchestrator.store.checkpoints.collector import Collector
from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.store.layout import JobFolder
from orchestrator.supervisor.linux.processes import boot_id
from orchestrator.supervisor.watch.finished_files import FinishedFiles
from tests.waiting import wait_until


@pytest.fixture
def job(tmp_path):
    folder = JobFolder(tmp_path / "0192-job")
    folder.checkpoints.mkdir(parents=True)
    folder.work.mkdir()
    folder.attempt(1).root.mkdir(parents=True)
    return folder


@pytest.fixture
def collect(job):
    """One look at the job's files: what was taken."""
    made: dict[int, Collector] = {}

    def look(*, alive=True, last=False, attempt=1, reached=None, glob=None):
        collector = made.setdefault(attempt, Collector(job, attempt, glob, lambda _: reached))
        collector.settle_s, collector.quick_s = 0.0, 1.0 if last else 0.0
        collector.changed()
        return collector.take(lambda: alive, last=last)

    return look


def zipped(data):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as opened:
        opened.writestr("archive/data.pkl", b"never read")
        opened.writestr("archive/data/0", data)
    return packed.getvalue()


def save(path, data=b"x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


written_ns = [0]


def later(*paths):
    """Give files times after all that was written so far, as training for a while between two saves would."""
    for path in paths:
        status = path.stat()
        written_ns[0] = max(written_ns[0], status.st_mtime_ns) + 10_000_000
        os.utime(path, ns=(written_ns[0], written_ns[0]))


def hugging_face(job, step, *, state=True):
    folder = job.checkpoints / f"checkpoint-{step}"
    files = [
        save(folder / "model.safetensors", b"w%d" % step),
        save(folder / "optimizer.pt", zipped(b"o%d" % step)),
    ]
    if state:
        files.append(save(folder / "trainer_state.json", json.dumps({"global_step": step, "loss": 1.5})))
    files.append(save(folder / "rng_state.pth", zipped(b"r%d" % step)))
    later(*files)
    return folder


def taken_once_quiet(collect, **given):
    """What is taken once the files have been quiet for longer than they are apart."""
    taken = []

    def look() -> bool:
        taken.extend(collect(**given).taken)
        return bool(taken)

    wait_until(look)
    return taken


def shown(generation):
    return sorted(file.path.removeprefix("checkpoints/") for file in generation.files)


def test_a_folder_of_hugging_face_is_one_checkpoint_and_is_what_resumes(job, collect):
    hugging_face(job, 100)
    folder = hugging_face(job, 200)

    first, second = collect(reached=187).taken

    assert (first.step, second.step) == (100, 200)
    assert shown(second) == [
        f"checkpoint-200/{name}"
        for name in ("model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json")
    ]
    assert GenerationStore(job).resume_path(second) == folder


def test_the_step_that_a_checkpoint_holds_counts_more_than_the_one_in_its_name(job, collect):
    folder = hugging_face(job, 300)
    later(save(folder / "trainer_state.json", json.dumps({"global_step": 312})))

    [generation] = taken_once_quiet(collect, reached=290)

    assert generation.step == 312


@pytest.mark.parametrize(("metadata", "step"), [({"step": "512"}, 512), ({"format": "pt"}, 290)])
def test_a_safetensors_file_may_hold_its_step(job, collect, metadata, step):
    header = json.dumps(
        {"__metadata__": metadata, "w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}
    ).encode()
    later(save(job.checkpoints / "last.safetensors", len(header).to_bytes(8, "little") + header + b"1234"))

    [generation] = collect(reached=290).taken

    assert generation.step == step


@pytest.mark.parametrize(
    ("names", "resume", "step"),
    [
        (["step_80/model.safetensors", "step_80/random_states_0.pkl"], "step_80", 80),
        (["last/optimizer.bin", "last/random_states_0.pkl"], "last", 77),
        (["step-100/.metadata", "step-100/__0_0.distcp", "step-100/__1_0.distcp"], "step-100", 100),
        ([".metadata", "__0_0.distcp"], "", 77),
        (["epoch=1-step=64.ckpt/meta.pt", "epoch=1-step=64.ckpt/checkpoint/__0_0.distcp"], "epoch=1-step=64.ckpt", 64),
        (["run/iter_0000100/mp_rank_00/model_optim_rng.pt"], "run", 100),
        (["run/0001000/params.npz", "run/0001000/sub/state.npz"], "run/0001000", 77),
        (["epoch_3/weights.bin"], "epoch_3", 77),
        (["5/last.bin"], "5", 77),
    ],
)  # fmt: skip
def test_a_checkpoint_that_is_a_folder_is_resumed_by_its_folder(job, collect, names, resume, step):
    later(*(save(job.checkpoints / name, name) for name in names))

    [generation] = collect(reached=77).taken

    assert shown(generation) == sorted(names)
    assert GenerationStore(job).resume_path(generation) == job.checkpoints / resume
    assert generation.step == step


def test_deepspeed_is_resumed_by_the_folder_whose_latest_names_the_newest(job, collect):
    for step in (80, 100):
        later(save(job.checkpoints / f"global_step{step}/mp_rank_00_model_states.pt", zipped(b"%d" % step)))
        later(save(job.checkpoints / "latest", f"global_step{step}"))

    generation = collect().taken[-1]

    assert shown(generation) == ["global_step100/mp_rank_00_model_states.pt", "latest"]
    assert GenerationStore(job).resume_path(generation) == job.checkpoints
    assert generation.step == 100


def test_a_folder_that_its_pointer_does_not_name_yet_waits(job, collect):
    save(job.checkpoints / "latest", "global_step80")
    later(save(job.checkpoints / "global_step100/mp_rank_00_model_states.pt", zipped(b"100")))

    assert collect().taken == []


def test_a_folder_inside_another_checkpoint_belongs_to_it(job, collect):
    folder = hugging_face(job, 200)
    save(folder / "global_step200/mp_rank_00_model_states.pt", zipped(b"d"))

    [generation] = taken_once_quiet(collect)

    assert "checkpoint-200/global_step200/mp_rank_00_model_states.pt" in shown(generation)


def test_lightnings_files_are_kept_one_by_one_beside_its_event_files(job, collect):
    folder = job.checkpoints / "lightning_logs/version_0"
    later(save(folder / "checkpoints/epoch=0-step=600.ckpt", zipped(b"600")))
    collect()
    later(save(folder / "checkpoints/epoch=1-step=1200.ckpt", zipped(b"1200")))
    with (folder / "events.out.tfevents.1763.host.1.0").open("wb") as events:
        events.write(b"scalars")
        events.flush()
        [generation] = collect(reached=1190).taken

    assert generation.step == 1200
    assert shown(generation) == ["lightning_logs/version_0/checkpoints/epoch=1-step=1200.ckpt"]


def test_files_of_two_steps_are_two_checkpoints(job, collect):
    for step in (100, 200):
        later(
            *(save(job.checkpoints / f"{part}_step_{step}.pt", zipped(b"%d" % step)) for part in ("m", "o"))
        )

    first, second = collect().taken

    assert shown(first) == ["m_step_100.pt", "o_step_100.pt"]
    assert shown(second) == ["m_step_200.pt", "o_step_200.pt"]


def numbered(job, pattern, numbers, pause_s):
    """Save a file for each number, with this many seconds of training before the next."""
    for place, number in enumerate(numbers):
        path = save(job.checkpoints / pattern.format(number), zipped(b"%d" % number))
        written_ns[0] += int(pause_s * 1e9) if place else 0
        later(path)


@pytest.mark.parametrize(
    ("pattern", "numbers", "pause_s"),
    [
        ("model_{:07}.pth", (0, 25, 50), 1),
        ("G_{}.pt", (1000, 2000, 9000), 1),
        ("net-{}.pth", (1, 2, 3), 6),
        ("feature_extractor_{}.pt", (1000, 2000, 3000), 1),
    ],
)
def test_files_whose_names_do_not_say_what_they_count_are_a_checkpoint_each_by_their_times(
    job, collect, pattern, numbers, pause_s
):
    """With all of them in each checkpoint, every save would verify and copy the whole past."""
    save(job.checkpoints / "vocab.json", '{"a": 1}')
    numbered(job, pattern, numbers, pause_s)

    taken = collect(reached=numbers[-1]).taken

    names = [pattern.format(number) for number in numbers]
    assert [shown(generation) for generation in taken] == [[names[0]], [names[1]], [names[2], "vocab.json"]]
    assert GenerationStore(job).resume_path(taken[-1]).name == names[-1]
    assert taken[-1].step == numbers[-1]


@pytest.mark.parametrize(
    ("pattern", "numbers", "pause_s"),
    [
        ("model_{}.pth", (0, 1, 2, 3), 0.1),
        ("model_{}.pth", (0, 1), 60),
        ("actor_{}.pt", (3, 7, 12), 0.01),
        ("model-rank{}.pt", (0, 8, 16), 60),
        ("model_{}.pth", (2, 0, 1), 60),
    ],
)
def test_files_that_may_be_the_parts_of_one_save_stay_together(job, collect, pattern, numbers, pause_s):
    numbered(job, pattern, numbers, pause_s)

    [generation] = collect().taken

    assert shown(generation) == sorted(pattern.format(number) for number in numbers)


@pytest.mark.parametrize(
    ("folder", "parts", "pause_s"),
    [
        ("step_100", ("model_0.pt", "model_1.pt", "model_2.pt"), 6),
        ("epoch_3", ("stage_0.pt", "stage_2.pt"), 1),
        ("run_1/epoch_3", ("enc_256.pt", "enc_512.pt"), 1),
    ],
)
def test_a_folder_of_a_step_is_one_checkpoint_however_slowly_its_numbered_parts_are_written(
    job, collect, folder, parts, pause_s
):
    for part in parts:
        path = save(job.checkpoints / folder / part, zipped(part.encode()))
        written_ns[0] += int(pause_s * 1e9)
        later(path)

    [generation] = collect().taken

    assert shown(generation) == sorted(f"{folder}/{part}" for part in parts)
    assert GenerationStore(job).resume_path(generation) == job.checkpoints / folder


@pytest.mark.parametrize("pattern", ["resnet_train_{}.pth", "embedding-{}.pt", "weights_{}.npz"])
def test_checkpoints_far_apart_are_one_save_each_whatever_their_word(job, collect, pattern):
    numbered(job, pattern, (1000, 2000, 3000), 10)

    assert len(collect().taken) == 3


@pytest.mark.parametrize(
    ("pattern", "numbers", "pause_s"),
    [
        ("features_{}.npy", (0, 1, 2, 3), 10),
        ("chunk_{:04}.npz", (0, 500, 1000), 10),
        ("train_{:04}.pt", (1, 5, 9), 1),
        ("test-embeddings_{}.pt", (0, 1, 2, 3), 60),
        ("model_fold_{}.pt", (0, 1, 2, 3, 4), 600),
    ],
)
def test_numbered_files_of_data_stay_together_however_slowly_they_are_written(
    job, collect, pattern, numbers, pause_s
):
    """One checkpoint each would leave the newest three of them in a retry's copy."""
    numbered(job, pattern, numbers, pause_s)

    [generation] = collect().taken

    assert shown(generation) == sorted(pattern.format(number) for number in numbers)


def test_a_missing_number_does_not_make_parts_a_checkpoint_each(job, collect):
    numbered(job, "block_{}.pt", (0, 1, 2, 4, 5), 1)

    [generation] = collect().taken

    assert len(generation.files) == 5


@pytest.mark.parametrize(("numbers", "pause_s"), [((100, 200, 300, 400), 5), ((1, 2, 3, 4), 9)])
def test_two_saves_at_once_do_not_make_all_saves_one_checkpoint(job, collect, numbers, pause_s):
    numbered(job, "net_{}.pth", numbers[:3], pause_s)
    numbered(job, "net_{}.pth", numbers[3:], 0)  # the last step's save, and one more at the end of the script

    taken = collect(reached=numbers[-1]).taken

    assert [shown(generation) for generation in taken] == [[f"net_{number}.pth"] for number in numbers[-3:]]


def test_a_numbered_folder_of_numbered_files_is_a_runs_and_no_checkpoint(job, collect):
    for step in (100, 200):
        later(save(job.checkpoints / f"42/step_{step}.pt", zipped(b"%d" % step)))

    assert [shown(generation) for generation in collect().taken] == [["42/step_100.pt"], ["42/step_200.pt"]]


def test_what_lies_loose_beside_a_checkpoint_is_put_back_with_it(job, collect):
    save(job.checkpoints / "vocab.json", '{"a": 1}')
    later(save(job.checkpoints / "step_100.pt", zipped(b"100")))

    [generation] = collect().taken

    assert [(file.path, file.companion) for file in generation.files] == [
        ("checkpoints/step_100.pt", False),
        ("checkpoints/vocab.json", True),
    ]
    assert GenerationStore(job).resume_path(generation) == job.checkpoints / "step_100.pt"


@pytest.mark.parametrize("name", ["events.out.tfevents.1.host", "train.log", "wandb/run-1/run.wandb"])
def test_a_trackers_open_file_does_not_keep_a_checkpoint_from_being_kept(job, collect, name):
    save(job.checkpoints / "ckpt.pt", zipped(b"weights"))
    with save(job.checkpoints / name).open("ab"):
        [generation] = collect().taken

    assert shown(generation) == ["ckpt.pt"]


def test_an_open_file_that_is_no_checkpoint_is_left_out_and_told_once(job, collect):
    told = []
    with save(job.checkpoints / "train.progress").open("ab"):
        for number in range(5):
            later(save(job.checkpoints / "ckpt.pt", zipped(b"%d" % number)))
            look = collect()
            told += look.left_out

    assert [shown(generation) for generation in look.taken] == [["ckpt.pt"]]
    assert told == ["checkpoints/train.progress"]


def test_a_log_that_the_kill_closed_is_still_no_part_of_the_checkpoint(job, collect):
    with save(job.checkpoints / "train.progress").open("ab"):
        for number in range(2):
            later(save(job.checkpoints / "ckpt.pt", zipped(b"%d" % number)))
            collect()
    later(save(job.checkpoints / "ckpt.pt", zipped(b"last")))

    look = collect(alive=False, last=True)

    assert ([shown(generation) for generation in look.taken], look.refused) == ([["ckpt.pt"]], [])


def test_a_part_of_the_checkpoint_that_is_being_written_is_waited_for(job, collect):
    save(job.checkpoints / "model.bin", b"m")
    with save(job.checkpoints / "optim.bin", b"half").open("ab"):
        for _ in range(3):
            assert collect().taken == []

    assert [shown(generation) for generation in collect().taken] == [["model.bin", "optim.bin"]]


def test_a_file_that_stays_open_while_others_are_saved_anew_does_not_veto_for_ever(job, collect):
    with save(job.checkpoints / "tokens.bin").open("r+b"):
        looks = []
        for number in range(4):
            later(save(job.checkpoints / "model.pt", zipped(b"%d" % number)))
            looks.append(collect())

    assert looks[0].taken == []
    assert [shown(generation) for generation in looks[-1].taken] == [["model.pt"]]


def test_a_table_that_grows_beside_a_checkpoint_makes_no_new_one(job, collect):
    later(save(job.checkpoints / "step_100.pt", zipped(b"100")))
    first = collect().taken
    for line in ("1,0.5\n", "1,0.5\n2,0.4\n"):
        later(save(job.checkpoints / "metrics.csv", line))
        assert collect().taken == first


def test_what_an_attempt_before_left_unproven_is_passed_over_in_silence(job, collect):
    later(save(job.checkpoints / "step_30.dat", b"half"))
    time.sleep(0.02)  # the kernel's clock for files is coarse
    save(job.attempt(2).supervisor, b"{}")
    assert (collect(attempt=2).taken, collect(attempt=2, last=True, alive=False).refused) == ([], [])
    time.sleep(0.02)
    later(save(job.checkpoints / "step_45.dat", b"whole"))

    look = collect(attempt=2)

    assert ([generation.step for generation in look.taken], look.refused) == ([45], [])


def test_an_older_checkpoint_that_still_lies_there_is_no_newer_one(job, collect):
    """All but the last are removed from what is kept; a later attempt finds them in the folder all the same."""
    for step in (100, 200, 300, 400, 500):
        hugging_face(job, step)
        collect()
    save(job.attempt(2).supervisor, b"{}")

    look = collect(attempt=2)

    assert [generation.step for generation in look.taken] == [500]
    assert [generation.step for generation in GenerationStore(job).list()] == [500, 400, 300]


def test_a_file_whose_name_is_no_text_does_not_keep_a_checkpoint_from_being_kept(job, collect):
    save(job.checkpoints / "ckpt.pt", zipped(b"weights"))
    save(job.checkpoints / os.fsdecode(b"caf\xe9.txt"))

    assert [shown(generation) for generation in collect().taken] == [["ckpt.pt"]]


# Folders that are written over in place


def rewrite(job, *names, number):
    """Replace these files of one folder, as one save after another does."""
    for name in names:
        part = save(
            job.checkpoints / "state" / f"{name}.tmp", zipped(b"save %d of %s" % (number, name.encode()))
        )
        part.replace(part.with_suffix(""))


SHARDS = ("__0_0.distcp", "__1_0.distcp", ".metadata")


@pytest.mark.parametrize("written", [1, 2])
def test_a_folder_between_the_files_of_two_saves_waits_for_the_others(job, collect, written):
    assert not collect().taken
    rewrite(job, *SHARDS, number=1)
    wait_until(lambda: collect().taken)

    rewrite(job, *SHARDS[:written], number=2)
    between = collect()
    rewrite(job, *SHARDS[written:], number=2)

    assert (between.taken, [each.name for each in between.refused]) == ([], ["state"])
    wait_until(lambda: collect().taken)


def test_a_folder_between_the_files_of_two_saves_is_not_kept_after_a_kill_either(job, collect):
    assert not collect().taken
    rewrite(job, *SHARDS, number=1)
    wait_until(lambda: collect().taken)
    kept = GenerationStore(job).list()

    rewrite(job, SHARDS[0], number=2)
    collect(alive=False, last=True)

    assert GenerationStore(job).list() == kept


def test_a_folder_that_nobody_watched_must_be_quiet_for_longer_than_its_files_are_apart(job, collect):
    rewrite(job, *SHARDS, number=1)
    time.sleep(0.4)  # the training between two saves
    rewrite(job, SHARDS[0], number=2)

    assert not collect().taken
    rewrite(job, *SHARDS[1:], number=2)

    wait_until(lambda: collect().taken)


@pytest.mark.parametrize(
    ("first", "later_on", "lost"),
    [
        ((*SHARDS, "best.pt"), SHARDS, 1),  # best.pt has a rhythm of its own
        (SHARDS, (SHARDS[0], SHARDS[2]), 2),  # a shard of a GPU that the job no longer has
    ],
    ids=["best", "shard"],
)
def test_a_file_that_misses_saves_does_not_stop_the_keeping_for_long(job, collect, first, later_on, lost):
    assert not collect().taken
    rewrite(job, *first, number=1)
    wait_until(lambda: collect().taken)
    for number in range(2, 2 + lost):
        rewrite(job, *later_on, number=number)
        assert not collect().taken

    for number in range(2 + lost, 4 + lost):
        rewrite(job, *later_on, number=number)
        wait_until(lambda: collect().taken)


# Killed writers


def test_a_folder_that_was_being_written_at_the_kill_does_not_count(job, collect):
    hugging_face(job, 100)
    collect()
    hugging_face(job, 200, state=False)

    look = collect(alive=False, last=True)

    assert [each.name for each in look.refused] == ["checkpoint-200"]
    assert GenerationStore(job).list()[0].step == 100


def test_a_whole_folder_counts_though_its_writer_was_killed_at_once(job, collect):
    folder = hugging_face(job, 100)
    header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    later(save(folder / "model.safetensors", len(header).to_bytes(8, "little") + header + b"abcd"))

    [generation] = collect(alive=False, last=True).taken

    assert generation.step == 100


def test_a_checkpoint_with_fewer_files_than_the_one_before_was_not_finished(job, collect):
    for part in ("model", "optim"):
        later(save(job.checkpoints / f"{part}_step_100.pt", zipped(b"100")))
    collect()
    later(save(job.checkpoints / "model_step_200.pt", zipped(b"200")))

    look = collect(alive=False, last=True)

    assert (look.taken, [each.name for each in look.refused]) == ([], ["model_step_200.pt"])


def test_what_the_supervisor_saw_finished_counts_though_nobody_else_was_there(job, collect):
    """The agent was away: it finds files of a killed writer that no format proves whole."""
    save(job.attempt(1).supervisor, json.dumps({"boot_id": boot_id()}))
    supervisor = FinishedFiles(job.attempt(1), {"checkpoints/": job.checkpoints, "work/": job.work})
    later(save(job.checkpoints / "step_10.bin", b"ten"))
    supervisor.look(1e6)
    supervisor.look(1e6 + 100)
    later(save(job.checkpoints / "step_20.bin", b"half"))
    supervisor.look(1e6 + 200)

    look = collect(alive=False, last=True)

    assert [generation.step for generation in look.taken] == [10]
    assert [each.name for each in look.refused] == ["step_20.bin"]


def test_the_supervisor_vouches_for_no_file_that_is_open_or_was_written_again(job):
    save(job.attempt(1).supervisor, json.dumps({"boot_id": boot_id()}))
    supervisor = FinishedFiles(job.attempt(1), {"checkpoints/": job.checkpoints})
    path = save(job.checkpoints / "a.bin", b"1")
    supervisor.look(1e6)
    with path.open("ab"):
        supervisor.look(1e6 + 100)
    record = job.attempt(1).finished_files
    assert not record.exists()
    supervisor.look(1e6 + 200)
    assert "a.bin" in record.read_text()
    path.write_bytes(b"22")
    supervisor.look(1e6 + 300)
    assert "a.bin" not in record.read_text()


def test_a_script_that_saves_without_steps_in_its_names_loses_its_last_file_only(job, collect):
    for name in ("m_a.bin", "m_b.bin"):
        later(save(job.checkpoints / name, name))
    collect()
    later(save(job.checkpoints / "m_c.bin", b"half"))

    look = collect(alive=False, last=True)

    assert [shown(generation) for generation in look.taken] == [["m_a.bin", "m_b.bin"]]
    assert [each.name for each in look.refused] == ["m_c.bin"]
