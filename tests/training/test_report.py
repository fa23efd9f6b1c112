"""Reporting: nothing on the step path, every line once, and readable."""

import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import training
from tests.training.started import PATIENCE_S
from training import events
from training.report import Reporter
from training.report.sinks import ConsoleSink, FileSink

Lines = Callable[[], list[dict[str, Any]]]
StartPython = Callable[..., subprocess.Popen[str]]


def test_values_of_a_step_become_one_line(reporter: Reporter, lines: Lines) -> None:
    before_s = time.time()

    reporter.report(step=10, loss=torch.tensor(0.5), lr=1e-3, total_steps=100)

    (line,) = lines()
    assert before_s - 0.001 <= line.pop("time") <= time.time() + 0.001  # it is rounded
    assert line == {"step": 10, "loss": 0.5, "lr": 1e-3, "total_steps": 100}


def test_tensor_changed_after_its_report_keeps_the_reported_value(reporter: Reporter, lines: Lines) -> None:
    total = torch.tensor(1.0)

    reporter.report(step=1, loss=total)
    total.zero_()

    assert lines()[0]["loss"] == 1.0


def test_a_loss_with_a_graph_does_not_keep_the_graph(reporter: Reporter, lines: Lines) -> None:
    weight = torch.ones(2, requires_grad=True)

    reporter.report(step=1, loss=(weight * 2).sum())

    assert not reporter._pending[0][2]["loss"].requires_grad
    assert lines()[0]["loss"] == 4.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_b47_nan_and_infinity_can_be_read_back(value: float, reporter: Reporter, lines: Lines) -> None:
    reporter.report(step=1, loss=torch.tensor(value))

    assert str(lines()[0]["loss"]) == str(value)


def test_unreadable_value_is_reported_once_and_harms_no_other(reporter: Reporter, lines: Lines) -> None:
    for step in (1, 2):
        reporter.report(step=step, loss=0.5, weights=torch.ones(3), event="x")

    written = lines()
    assert [line["name"] for line in written if line.get("event") == "unreadable_value"] == [
        "weights",
        "event",
    ]
    assert [line["loss"] for line in written if "step" in line] == [0.5, 0.5]


def test_only_rank_0_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    other = Reporter(tmp_path / "other")

    other.report(step=1, loss=0.5)
    other.event("checkpoint")
    other.heartbeat()
    other.close()

    assert not (tmp_path / "other").exists()


def test_lines_are_written_in_the_background(reporter: Reporter, tmp_path: Path) -> None:
    reporter.report(step=1, loss=0.5)

    deadline = time.monotonic() + PATIENCE_S
    while not (tmp_path / "metrics.jsonl").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)

    assert json.loads((tmp_path / "metrics.jsonl").read_text())["step"] == 1


def test_heartbeats_are_written_only_without_steps(reporter: Reporter, lines: Lines) -> None:
    reporter.heartbeat()
    reporter.flush()
    reporter.report(step=1, loss=0.5)
    reporter.flush()
    reporter.heartbeat()

    assert [sorted(line)[0] for line in lines()] == ["heartbeat", "loss"]


def test_idle_reporter_thread_is_not_a_heartbeat(reporter: Reporter, lines: Lines) -> None:
    reporter.total_steps(10)

    time.sleep(0.6)

    assert lines() == [{"total_steps": 10}]


def test_reporting_from_many_threads_loses_no_line(reporter: Reporter, lines: Lines) -> None:
    import threading

    def work(start: int) -> None:
        for step in range(start, start + 500):
            reporter.report(step=step, loss=0.5)

    threads = [threading.Thread(target=work, args=(1000 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(lines()) == 2000


def test_report_package_is_callable_however_imported() -> None:
    from training import report

    assert callable(training.report)
    assert report is training.report or callable(report)


def test_lines_are_whole_after_the_disk_was_full(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from training.report.sinks import FileSink
sink = FileSink(Path("m"))
resource.setrlimit(resource.RLIMIT_FSIZE, (25, resource.RLIM_INFINITY))
for number in range(10):
    assert sink.write([b'{"step":%d}\\n' % number]) == 0
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
sink.write([b'{"step":10}\\n'])
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env=_environment())

    steps = []
    for line in (tmp_path / "m").read_text().splitlines():
        try:
            steps.append(json.loads(line)["step"])
        except ValueError:
            assert '{"step":'.startswith(line)  # the half line, ended by a newline of its own
    assert steps == list(range(11))


def test_lines_refused_by_a_full_disk_for_too_long_are_dropped_and_counted(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "m")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        given_up = sink.write([b"x" * 1023 + b"\n"] * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert given_up == 5000
    assert sink.write([b"y\n"]) == 0
    assert (tmp_path / "m").read_text() == "y\n"
    sink.close()


def test_line_that_comes_after_the_close_goes_into_no_other_file(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "m")
    sink.write([b"x\n"])
    sink.close()
    with (tmp_path / "other").open("wb") as other:  # takes the descriptor that has become free
        sink.write([b"y\n"])
        sink.close()
        other.write(b"its own")

    assert (tmp_path / "other").read_bytes() == b"its own"
    assert (tmp_path / "m").read_text() == "x\n"


def test_a_metrics_file_that_cannot_be_written_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = Reporter(tmp_path / "no" / "such" / "folder")

    reporter.report(step=1, loss=0.5)
    reporter.close()

    printed = capsys.readouterr()
    assert "cannot be written (No such file or directory)" in printed.err
    assert printed.out == "step 1 loss 0.5\n"


def test_without_a_metrics_file_the_newest_step_is_printed_at_most_once_a_second(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sink = ConsoleSink()

    for step in range(5):
        sink.show(step, {"loss": 0.123456789})
    sink.close()

    assert capsys.readouterr().out == "step 0 loss 0.12346\nstep 4 loss 0.12346\n"


def test_lines_are_written_at_exit(tmp_path: Path, start_python: StartPython) -> None:
    process = start_python("import training.report as r; r.report(step=1, loss=0.5)", BERTH_METRICS_FILE="m")

    assert process.wait(PATIENCE_S) == 0
    assert json.loads((tmp_path / "m").read_text())["step"] == 1


def test_lines_are_written_on_sigterm_which_still_kills(tmp_path: Path, start_python: StartPython) -> None:
    code = """
import time, training.report as r
r.report(step=1, loss=0.5); r.default_reporter().flush()
r.report(step=2, loss=0.5); print("ready", flush=True); time.sleep(60)
"""
    process = start_python(code, BERTH_METRICS_FILE="m")
    assert process.stdout is not None
    process.stdout.readline()

    process.send_signal(signal.SIGTERM)

    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    assert [json.loads(line)["step"] for line in (tmp_path / "m").read_text().splitlines()] == [1, 2]


def test_a_forked_process_does_not_repeat_its_parents_lines(reporter: Reporter, lines: Lines) -> None:
    reporter.heartbeat()
    reporter.report(step=1, loss=0.5)
    if (child := os.fork()) == 0:
        reporter.report(step=2, loss=0.5)
        reporter.flush()
        reporter.close()
        os._exit(0)
    os.waitpid(child, 0)

    assert [line["step"] for line in lines() if "step" in line] == [1]


def test_reporting_does_not_import_torch() -> None:
    code = "import sys, training, training.report, training.config, training.events; assert 'torch' not in sys.modules"

    subprocess.run([sys.executable, "-c", code], check=True, env=_environment())


def test_reserved_keys_match_the_lines() -> None:
    line = json.loads(events.metric_line(1, 2.0, {"loss": 3.0}))

    assert {"step", "time"} == set(line) & events.RESERVED


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
