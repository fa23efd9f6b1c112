"""Records, processes, orders, caps and the verdict over an attempt's folder, each by itself."""

import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.sentences import say
from orchestrator.supervisor import liveness as liveness_of
from orchestrator.supervisor.linux import processes
from orchestrator.supervisor.liveness import Evidence, Liveness, judge, liveness
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.launch import BadLaunch, Launch
from orchestrator.supervisor.protocol.orders import (
    CheckpointOrder,
    OrderBook,
    StopOrder,
    order_checkpoint,
    order_stop,
    parse_order,
)
from orchestrator.supervisor.protocol.records import LARGEST_RECORD_BYTES, read_record, write_record
from orchestrator.supervisor.ranks.command import rank_environment, run_command, run_environment
from orchestrator.supervisor.verdict.hiding import hider_of
from orchestrator.supervisor.watch.log_caps import LogCap
from orchestrator.supervisor.watch.stalls import HangWatch
from tests.supervisor.conftest import REPOSITORY


def test_a_record_comes_back_with_its_version(tmp_path: Path) -> None:
    write_record(tmp_path / "a.json", {"x": [1, None]})

    assert read_record(tmp_path / "a.json") == {"v": 1, "x": [1, None]}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_record_of_a_newer_version_is_read_with_all_its_fields(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"v": 9, "x": 1, "unknown": {}}')

    assert read_record(tmp_path / "a.json") == {"v": 9, "x": 1, "unknown": {}}


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '"x"', "\0", "[" * 100_000, " " * (LARGEST_RECORD_BYTES + 1)]
)
def test_what_is_no_record_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)

    assert read_record(tmp_path / "a.json") is None


def test_a_record_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    write_record(tmp_path / "a.json", {"x": 1})
    with pytest.raises(TypeError):
        write_record(tmp_path / "a.json", {"x": object()})

    assert read_record(tmp_path / "a.json") == {"v": 1, "x": 1}


@pytest.mark.code("F65")
def test_a_recorded_pid_of_another_program_is_dead_and_never_signalled() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        now = processes.identify(other.pid)
        assert now is not None
        before = processes.ProcessId(now.boot_id, now.pid, now.start_ticks - 1)

        assert not processes.is_alive(before)
        assert not processes.send_signal(before, signal.SIGKILL)
        assert processes.is_alive(now)
        assert processes.send_signal(now, signal.SIGKILL)


@pytest.mark.code("F66")
def test_a_process_of_another_boot_is_dead() -> None:
    me = processes.identify(os.getpid())
    assert me is not None

    assert not processes.is_alive(processes.ProcessId("another-boot", me.pid, me.start_ticks))


def test_a_zombie_is_dead() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        process = processes.identify(child.pid)
        assert process is not None
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

        assert not processes.is_alive(process)


def test_descendants_are_the_same_with_and_without_children_files(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & wait"]) as shell:
        while len(found := processes.descendants(shell.pid)) < 2:
            time.sleep(0.01)
        monkeypatch.setattr(processes, "_children_files_exist", lambda: False)
        scanned = processes.descendants(shell.pid)
        for pid in found:
            os.kill(pid, signal.SIGKILL)

    assert sorted(found) == sorted(scanned)


def test_a_process_is_found_by_its_nonce_and_knows_its_rank() -> None:
    with subprocess.Popen(
        ["sleep", "60"], env={"BERTH_NONCE": "n-1234", "RANK": "3", "PATH": os.environ["PATH"]}
    ) as child:
        while b"RANK=3" not in processes.environ(child.pid):  # between fork and exec
            time.sleep(0.001)
        assert processes.with_nonce("n-1234") == [child.pid]
        assert processes.with_nonce("n-123") == []
        assert processes.rank_of(child.pid) == 3
        child.kill()


def test_orders_are_read_once_and_in_order(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path)
    order_checkpoint(folder)
    order_stop(folder, "cancel", 3)
    book = OrderBook(folder)

    first, second = book.new()

    assert isinstance(first, CheckpointOrder)
    assert isinstance(second, StopOrder)
    assert (second.reason, second.grace_s) == ("cancel", 3)
    assert book.new() == []


@pytest.mark.parametrize("record", [None, {}, {"order": "dance"}, {"order": 5}])
def test_orders_we_do_not_know_are_passed_over(record: dict[str, object] | None) -> None:
    assert parse_order(record) is None


def test_a_stop_with_odd_fields_still_stops() -> None:
    order = parse_order({"order": "stop", "reason": ["x"], "grace_s": "soon"})

    assert isinstance(order, StopOrder)
    assert (order.reason, order.grace_s) == ("policy", 0.0)


def test_a_log_below_its_limit_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 65536)
    cap = LogCap(tmp_path / "log", 65536)
    cap.enforce()

    assert cap.dropped_bytes == 0


@pytest.mark.code("F90")
def test_a_log_that_keeps_growing_stays_within_its_limit(tmp_path: Path) -> None:
    path, limit_bytes = tmp_path / "log", 256 << 10
    cap = LogCap(path, limit_bytes)
    with path.open("ab") as log:
        for number in range(50):
            log.write(bytes([number + 1]) * 65536)
            log.flush()
            cap.enforce()

    data = path.read_bytes()
    assert len(data) == 50 * 65536
    assert data.count(0) == cap.dropped_bytes
    assert data[: limit_bytes // 4] == b"\1" * 65536
    assert 0 not in data[-limit_bytes // 4 :]
    assert path.stat().st_blocks * 512 <= limit_bytes


def test_a_log_that_grows_slowly_keeps_half_of_its_limit_for_its_end(tmp_path: Path) -> None:
    path, limit_bytes = tmp_path / "log", 1 << 20
    cap = LogCap(path, limit_bytes)
    with path.open("ab") as log:
        for _ in range(300):
            log.write(b"x" * 4096)
            log.flush()
            assert not cap.enforce()

    assert 0 not in path.read_bytes()[-limit_bytes // 2 + 2 * 4096 :]
    assert path.stat().st_blocks * 512 <= limit_bytes


def test_a_log_is_within_its_limit_at_the_end_however_it_got_there(tmp_path: Path) -> None:
    """In one piece since the last look, cut short by the run, and written into its hole."""
    path, limit_bytes = tmp_path / "log", 1 << 20
    cap = LogCap(path, limit_bytes)
    path.write_bytes(b"x" * (8 << 20))
    assert cap.enforce()
    os.truncate(path, 100)
    cap.enforce()
    dropped_bytes = cap.dropped_bytes
    with path.open("r+b") as log:
        log.truncate(16 << 20)
        log.write(b"y" * (16 << 20))

    cap.enforce(at_end=True)

    assert path.stat().st_blocks * 512 <= limit_bytes
    assert cap.dropped_bytes > dropped_bytes > 6 << 20
    with path.open("r+b") as log:
        log.write(b"z" * (16 << 20))
    cap.enforce(at_end=True)
    assert path.stat().st_blocks * 512 <= limit_bytes


def test_a_link_in_place_of_a_log_is_not_punched(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"x" * 500_000)
    (tmp_path / "log").symlink_to(tmp_path / "target")
    LogCap(tmp_path / "log", 65536).enforce()

    assert (tmp_path / "target").read_bytes().count(0) == 0


def test_a_run_hangs_only_when_nothing_at_all_grows(tmp_path: Path) -> None:
    metrics, log = tmp_path / "metrics.jsonl", tmp_path / "rank0.log"
    watch = HangWatch(metrics, {0: log, 1: tmp_path / "rank1.log"}, timeout_s=10, now_s=100)
    log.write_text("a")
    assert watch.check(105) is None
    metrics.write_text("b")
    assert watch.check(112) is None
    assert watch.check(121.9) is None

    hang = watch.check(122)

    assert hang is not None
    assert hang.facts == {"timeout_s": 10, "silent_s": [17, 22]}
    assert "rank 0 for 17 s, rank 1 for 22 s" in say(hang)


ALIVE = Evidence(
    has_exit_record=False,
    lock_held=True,
    has_identity=True,
    same_boot=True,
    heartbeat_age_s=0.5,
    processes_left=False,
)
GONE = replace(ALIVE, lock_held=False, heartbeat_age_s=None)


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (ALIVE, Liveness.ALIVE),
        (replace(ALIVE, heartbeat_age_s=31.0), Liveness.UNKNOWN),
        (replace(ALIVE, heartbeat_age_s=None, has_identity=False), Liveness.ALIVE),
        (replace(ALIVE, has_exit_record=True), Liveness.ENDED),
        (replace(GONE, has_exit_record=True), Liveness.ENDED),
        (replace(GONE, has_identity=False, same_boot=False), Liveness.NEVER_STARTED),
        (replace(GONE, processes_left=True), Liveness.DYING),
        (GONE, Liveness.LOST),
        (replace(GONE, same_boot=False), Liveness.LOST),
    ],
)
def test_rule_5_tells_the_cases_apart(evidence: Evidence, verdict: Liveness) -> None:
    assert judge(evidence) is verdict


@pytest.mark.code("F66")
def test_after_a_reboot_an_attempt_is_lost_at_once(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path)
    me = processes.identify(os.getpid())
    assert me is not None
    write_record(folder.launch, {"number": 1, "nonce": "n"})
    write_record(folder.supervisor, {**me.to_record(), "boot_id": "before", "number": 1, "nonce": "n"})
    write_record(folder.sandbox, {"init": {"pid": me.pid, "start_ticks": me.start_ticks}})
    folder.lock.touch()

    assert liveness(folder) is Liveness.LOST


def test_a_supervisor_that_begins_during_the_look_is_not_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the lock just after this was seen free, and writes who it is before anything else is read."""
    folder = AttemptFolder(tmp_path)
    write_record(folder.launch, {"number": 1, "nonce": "n"})
    folder.lock.touch()
    with folder.lock.open() as lock:

        def look_just_too_early(_folder: AttemptFolder) -> bool:
            fcntl.flock(lock, fcntl.LOCK_EX)
            start = processes.identify(1)
            assert start is not None
            write_record(
                folder.supervisor,
                {"boot_id": processes.boot_id(), "pid": 1, "start_ticks": start.start_ticks},
            )
            return False

        with monkeypatch.context() as patched:
            patched.setattr(liveness_of, "_lock_is_held", look_just_too_early)
            assert liveness(folder) is Liveness.NEVER_STARTED
        assert liveness(folder) is Liveness.ALIVE


def test_an_exit_record_of_another_attempt_does_not_count(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path)
    write_record(folder.launch, {"number": 2, "nonce": "n2"})
    write_record(folder.exit, {"number": 1, "nonce": "n1", "kind": "ok"})

    assert liveness(folder) is Liveness.NEVER_STARTED


LAUNCH: dict[str, object] = {
    "job_id": "j",
    "number": 1,
    "nonce": "n",
    "python": "/p",
    "entry": "/e",
    "script": "s.py",
    "ranks": 1,
    "home": "/h",
    "work": "/w",
    "checkpoints": "/c",
    "output": "/o",
    "sandbox": {"level": 0, "network": "host"},
}


@pytest.mark.parametrize(
    "change",
    [
        {"nonce": ""},
        {"ranks": 0},
        {"ranks": True},
        {"args": ["a", 1]},
        {"env": {"A": 1}},
        {"script": "a\0b"},
        {"sandbox": {"level": 0, "network": "none"}},
        {"limits": []},
    ],
)
def test_a_launch_that_makes_no_sense_is_refused_by_name(change: dict[str, object]) -> None:
    with pytest.raises(BadLaunch, match=r"launch.json"):
        Launch(LAUNCH | change)


@pytest.mark.parametrize(
    ("written", "threads"), [({"threads": 3}, "3"), ({"env": {"OMP_NUM_THREADS": "5"}}, "5")]
)
def test_a_rank_computes_with_the_threads_of_the_record_unless_the_job_says_otherwise(
    written: dict[str, object], threads: str, tmp_path: Path
) -> None:
    launch = Launch(LAUNCH | written)

    assert run_environment(launch, AttemptFolder(tmp_path), {})["OMP_NUM_THREADS"] == threads


def test_a_launch_of_a_newer_server_is_accepted() -> None:
    launch = Launch(
        json.loads(json.dumps(LAUNCH | {"v": 7, "new_field": [1], "ranks": 4, "launcher": "direct"}))
    )

    assert (launch.ranks, launch.torchrun, launch.log_bytes) == (4, False, None)


@pytest.mark.parametrize("network", ["host", "none"])
@pytest.mark.code("F70")
def test_ranks_meet_at_a_number_and_not_at_a_name(network: str) -> None:
    launch = Launch(LAUNCH | {"ranks": 2, "sandbox": {"level": 1, "network": network}})

    command = run_command(launch)

    assert command[command.index("--local-addr") + 1] == "127.0.0.1"
    assert "localhost" not in " ".join(command)
    assert rank_environment(0, 2, 29500)["MASTER_ADDR"] == "127.0.0.1"


def test_the_supervisor_needs_the_standard_library_only() -> None:
    files = (REPOSITORY / "orchestrator/supervisor").rglob("*.py")
    modules = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in files]
    program = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n" + "\n".join(
        f"import {name}" for name in modules
    )

    # -S: no site-packages at all
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True)


def test_a_secret_that_no_address_can_hold_is_hidden_all_the_same() -> None:
    assert hider_of(["half a pair: \ud83d", "other-secret"])("it was other-secret") == "it was ***"


@pytest.mark.parametrize(
    "printed",
    [
        "wJalr%2FXUtn%2BFE%20MI%3D",
        "wJalr/XUtn%2BFE%20MI%3D",
        "wJalr%2FXUtn%2BFE+MI%3D",
        "wJalr/XUtn+FE MI=",
        "wJalr%2fXUtn%2bFE%20MI%3d",
        "wJalr/XUtn%2bFE%20MI%3d",
    ],
)
def test_a_secret_is_hidden_as_addresses_write_it(printed: str) -> None:
    assert hider_of(["wJalr/XUtn+FE MI="])(f"GET /?key={printed}&page=2") == "GET /?key=***&page=2"


@pytest.mark.parametrize(
    "printed", ['{"key": "pass\\"w\\u00f6rd"}', '{"key": "pass\\"wörd"}', "pass&quot;wörd"]
)
def test_a_secret_is_hidden_as_json_and_pages_write_it(printed: str) -> None:
    assert "rd" not in hider_of(['pass"wörd'])(printed)


@pytest.mark.parametrize("double", ["&quot;", "&#34;", "&#x22;", '"'])
@pytest.mark.parametrize("single", ["&#x27;", "&#39;", "&#039;", "&apos;", "'"])
def test_a_secret_is_hidden_however_a_page_writes_its_quotes(double: str, single: str) -> None:
    assert hider_of(['it\'s <my> "key"'])(f"it{single}s &lt;my&gt; {double}key{double}!") == "***!"


@pytest.mark.parametrize(
    ("cut", "shown"),
    [
        ("sk-very/quiet\nend", "***\nend"),
        ("/quiet\nend", "***\nend"),
        ("t, end", "***, end"),
        ("2Fquiet\nend", "***\nend"),
        ("\ufffd\ufffdtéquiet end sk-very/quiet", "*** end ***"),
        ("other-secret end", "*** end"),  # its first letter is the last one of another
        ("nothing sk-very/quiet", "nothing ***"),
        ("", ""),
    ],
)
def test_the_end_of_a_secret_at_a_cut_is_hidden(cut: str, shown: str) -> None:
    assert hider_of(["sk-very/quiet", "étéquiet", "other-secret", "a-key-too"]).in_cut(cut) == shown


def test_the_end_of_a_secret_in_a_long_log_is_found_in_a_moment() -> None:
    hide = hider_of(["\n".join(f"line {line} of key {key}" for line in range(600)) for key in range(100)])
    before_s = time.process_time()

    assert hide.in_cut("f key 99\n" + "step 1 loss 0.5\n" * 2000).startswith("***\nstep 1")
    assert time.process_time() - before_s < 2


@pytest.mark.parametrize("value", ['"', "'", "&", "é", "  ", " " * 6, "\n\t\n", "a&b", "[]\n{}", "é\né\n"])
def test_a_value_that_is_too_short_to_be_secret_spoils_no_text(value: str) -> None:
    text = '{"a": 1}\n      &quot;b&#x27;&quot; \\u00e9 \\n\\t\\n a&amp;b %20%20 %C3%A9 %26'

    assert hider_of([value])(text) == text


def test_secrets_that_begin_alike_are_hidden_whole() -> None:
    values = ["secret", "secret-of-mine", "secret-of-mine.*(", "***"]

    assert hider_of(values)("secret secret-of-mine secret-of-mine.*( ***") == "*** *** *** ***"


def test_thousands_of_short_lines_are_looked_for_in_a_moment() -> None:
    letters = [chr(ord("a") + number) for number in range(20)]
    lines = ["".join(line) for line in itertools.islice(itertools.product(letters, repeat=6), 100_000)]
    hide = hider_of(["\n".join(lines)])
    before_s = time.process_time()

    assert hide("step 1 loss 0.5\n" * 2000 + lines[-1]).endswith("\n***")
    assert time.process_time() - before_s < 1


def test_many_long_secrets_are_hidden() -> None:
    keys = ["\n".join(f"line {line} of key {key}" for line in range(600)) for key in range(100)]

    assert "of key" not in hider_of(keys)("line 599 of key 99\n" * 400)
