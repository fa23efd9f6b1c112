from pathlib import Path

import pytest

from orchestrator.devices.host import UNMARKED, Mark, Process, ProcessTable, owning_mark


def _make_process(
    proc: Path, pid: int, parent: int, environ: str, *, started: int = 5, name: str = "python"
) -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    fields = ["S", str(parent), *["0"] * 9, "150", "50", *["0"] * 6, str(started), "0", "25", *["0"] * 20]
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (folder / "environ").write_text("\0".join(environ.split()) + "\0")
    (proc / "uptime").write_text("1000.0 900.0\n")


def test_a_name_made_to_confuse_readers_of_proc_does_not(tmp_path: Path):
    _make_process(tmp_path, 7, 1, "BERTH_NONCE=abc LOCAL_RANK=3", name="x) S 999 (y")

    process = ProcessTable(tmp_path).scan()[7]

    assert (process.parent, process.cpu_s, process.mark) == (1, 2.0, Mark("abc", 3))


@pytest.mark.code("F65")
def test_a_pid_that_is_used_again_loses_the_mark_of_the_process_before(tmp_path: Path):
    table = ProcessTable(tmp_path)
    _make_process(tmp_path, 7, 1, "BERTH_NONCE=abc", started=5)
    table.scan()

    _make_process(tmp_path, 7, 1, "HOME=/", started=6)

    assert table.scan()[7].mark == UNMARKED


def test_the_environment_of_a_process_that_was_just_forked_is_read_again(tmp_path: Path):
    table = ProcessTable(tmp_path)
    _make_process(tmp_path, 7, 1, "HOME=/", started=99_950)  # half a second old
    table.scan()

    _make_process(tmp_path, 7, 1, "BERTH_NONCE=abc", started=99_950)

    assert table.scan()[7].mark == Mark("abc", None)


def test_variables_that_only_begin_alike_are_not_taken(tmp_path: Path):
    _make_process(tmp_path, 7, 1, "XBERTH_NONCE=abc BERTH_NONCE_OLD=def LOCAL_RANK=0")

    assert ProcessTable(tmp_path).scan()[7].mark == UNMARKED


def test_looking_at_one_process_reads_its_ancestors_and_nothing_else(tmp_path: Path):
    for pid, parent in ((2, 1), (3, 2), (4, 1)):
        _make_process(tmp_path, pid, parent, "HOME=/")

    assert sorted(ProcessTable(tmp_path).look([3])) == [2, 3]


def test_ancestors_in_a_circle_do_not_hang():
    one, two = (Process(pid, 3 - pid, 0, 0.0, 0, UNMARKED) for pid in (1, 2))

    assert owning_mark(one, {1: one, 2: two}) == UNMARKED
