"""Reading what ranks, torchrun and the starter left, which the run could have forged."""

import os
from pathlib import Path

from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import read_tail
from orchestrator.supervisor.verdict.rank_reports import (
    parse_error,
    parse_exit_codes,
    read_errors,
    read_exit_codes,
    read_finished,
)

TORCHRUN = """
W0101 00:00:00.000 7 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 79 closing signal SIGTERM
============================================================
/work/train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_00:00:00
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 79) (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 79
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 80) (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 80
============================================================
"""


def test_torchruns_root_cause_comes_first() -> None:
    assert list(parse_exit_codes(TORCHRUN).items()) == [(1, -9), (0, -15)]


def test_the_starters_first_failure_comes_first() -> None:
    assert list(parse_exit_codes('noise\n{"berth_ranks": [[2, 0], [1, -9], [0, -15]]}\n').items()) == [
        (1, -9),
        (0, -15),
        (2, 0),
    ]


def test_other_output_holds_no_codes() -> None:
    assert parse_exit_codes("rank      : 1 (local_rank: 1)\n") == {}
    assert parse_exit_codes('{"berth_ranks": 5}') == {}


def test_an_error_record_of_torch_itself_is_read() -> None:
    error = parse_error(
        {"message": {"message": "ValueError: a: b", "extraInfo": {"timestamp": "3", "py_callstack": ""}}}
    )

    assert error is not None
    assert (error.exception, error.message, error.time_ns) == ("ValueError", "a: b", 3_000_000_000)


def test_odd_error_records_do_no_harm() -> None:
    assert parse_error({"message": "text"}) is None
    assert parse_error({"message": {"message": 5}}) is None
    odd = parse_error({"message": {"message": "E: x", "extraInfo": {"time_ns": "soon"}}})
    assert odd is not None
    assert odd.time_ns == 0


def test_links_that_a_run_put_in_our_way_are_not_followed(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path)
    folder.errors.mkdir()
    folder.finished.mkdir()
    (tmp_path / "secret").write_text('{"message": {"message": "E: secret"}}')
    (tmp_path / "zero").write_text("0")
    folder.error(0).symlink_to(tmp_path / "secret")
    folder.finished_marker(0).symlink_to(tmp_path / "zero")

    assert read_errors(folder, range(1)) == {}
    assert read_finished(folder, range(1)) == {}


def test_folders_and_pipes_in_place_of_records_are_no_records(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path)
    folder.error(0).mkdir(parents=True)
    folder.finished_marker(0).mkdir(parents=True)
    os.mkfifo(folder.error(1))

    assert read_errors(folder, range(2)) == {}
    assert read_finished(folder, range(2)) == {}


def test_codes_of_ranks_that_do_not_exist_are_left_out(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path)
    folder.logs.mkdir()
    folder.launcher_log.write_text('{"berth_ranks": [[7, 1], [1, -9], [-1, 0]]}')

    assert read_exit_codes(folder, range(2)) == {1: -9}


def test_the_tail_is_bounded_and_never_waits(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"a" * 100 + b"\xffend")
    os.mkfifo(tmp_path / "pipe")

    assert read_tail(tmp_path / "log", 4) == "�end"
    assert read_tail(tmp_path / "pipe", 4) == ""
    assert read_tail(tmp_path / "nothing", 4) == ""
