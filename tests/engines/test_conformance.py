"""What every engine has to do, whatever becomes of single calls; another one joins ``ENGINES``."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar
from uuid import uuid4

import pytest
from django.conf import settings

from orchestrator.jobs.launch import launcher
from orchestrator.jobs.launch.engines import Engine, NoShell, NotStarted, Order, order_of, read_whole
from orchestrator.models import Attempt
from orchestrator.nodes.port import LocalPort
from orchestrator.supervisor.linux.processes import from_record, is_over
from orchestrator.supervisor.liveness import Liveness
from orchestrator.supervisor.protocol.records import read_record, write_record
from tests.engines.conftest import SCRIPT
from tests.engines.linked import LinkedEngine
from tests.waiting import PATIENCE_S, wait_until

Answer = TypeVar("Answer")
DEAD = {Liveness.LOST, Liveness.ENDED}


def told(call: Callable[[], Answer]) -> Answer:
    """The first answer to a call that is repeated until somebody answers it."""
    while True:
        with suppress(TimeoutError):
            return call()


def start(engine: Engine, attempt: Attempt) -> None:
    """Order a start until the supervisor is there, as the worker does."""

    def is_there() -> bool:
        with suppress(NotStarted):  # the line or the machine is busy; it still comes
            engine.start(order_of(attempt), {})
        return launcher.folder_of(attempt).supervisor.exists()

    wait_until(is_there)


def becomes(engine: Engine, attempt: Attempt, *wanted: Liveness) -> None:
    wait_until(lambda: engine.state(order_of(attempt)) in wanted)


@contextmanager
def running(engine: Engine, attempt: Attempt) -> Iterator[int]:
    """A run whose script is up; gives the supervisor's pid, and ends the run."""
    folder = launcher.folder_of(attempt)
    start(engine, attempt)
    wait_until(lambda: folder.log(0).exists() and "up" in folder.log(0).read_text())
    try:
        yield int(str((read_record(folder.supervisor) or {})["pid"]))
    finally:
        if engine.state(order_of(attempt)) not in DEAD:
            told(lambda: engine.stop(order_of(attempt), reason="cancel", grace_s=0, saved=False))
            becomes(engine, attempt, *DEAD)


def test_order_that_is_given_twice_is_one_run_that_ends_when_it_is_stopped(engine, prepared):
    attempt = prepared()
    folder = launcher.folder_of(attempt)

    with running(engine, attempt):
        first = read_record(folder.supervisor)
        for _ in range(5):
            with suppress(NotStarted):
                engine.start(order_of(attempt), {})
        becomes(engine, attempt, Liveness.ALIVE)
        assert read_record(folder.supervisor) == first
        assert told(lambda: engine.stop(order_of(attempt), reason="cancel", grace_s=5, saved=False))
        becomes(engine, attempt, Liveness.ENDED)

    record = told(lambda: read_whole(engine, order_of(attempt), folder.exit.name)) or {}
    assert (record["kind"], record["nonce"]) == ("cancelled", attempt.nonce)
    assert folder.log(0).read_text().count("up") == 1


def test_start_that_comes_after_the_end_starts_nothing(engine, prepared):
    attempt = prepared(b"print('up', flush=True)")
    folder = launcher.folder_of(attempt)
    start(engine, attempt)
    becomes(engine, attempt, Liveness.ENDED)
    ended = folder.exit.read_bytes()

    for _ in range(5):
        with suppress(NotStarted):
            engine.start(order_of(attempt), {})

    becomes(engine, attempt, Liveness.ENDED)
    assert (folder.exit.read_bytes(), folder.log(0).read_text()) == (ended, "up\n")


def test_lines_are_read_by_offset_each_exactly_once(engine, prepared):
    lines = [f'{{"step": {step}}}\n'.encode() for step in range(300)]
    writes = (
        b"import os\nwith open(os.environ['BERTH_METRICS_FILE'], 'a') as file:\n    for step in range(300):\n"
    )
    attempt = prepared(writes + b"        file.write('{\"step\": %d}\\n' % step)\n        file.flush()\n")
    start(engine, attempt)
    read = bytearray()

    def read_on() -> bytes:
        name = launcher.folder_of(attempt).metrics.name
        more: bytes = told(lambda: engine.read(order_of(attempt), name, len(read), 97))
        return more

    def is_read_to_its_end() -> bool:
        ended = engine.state(order_of(attempt)) is Liveness.ENDED
        while more := read_on():
            read.extend(more)
        return ended

    wait_until(is_read_to_its_end)

    assert read == b"".join(lines)


def test_what_is_no_file_of_the_attempt_reads_as_empty(engine, prepared, on_node):
    attempt = prepared()
    (on_node(attempt).root / "linked").symlink_to("/etc/passwd")
    order = order_of(attempt)

    def reads(name: str) -> bytes:
        text: bytes = told(lambda: engine.read(order, name, 0, 100))
        return text

    names = ("nothing.json", "logs", "logs/nothing", "linked", "../../work/train.py", "/etc/passwd")
    assert {name: reads(name) for name in names} == dict.fromkeys(names, b"")


def test_killed_supervisor_is_lost_once_its_processes_are_ended(engine, prepared):
    attempt = prepared()

    with running(engine, attempt) as pid:
        os.kill(pid, signal.SIGKILL)
        becomes(engine, attempt, Liveness.DYING, Liveness.LOST)
        if told(lambda: engine.state(order_of(attempt))) is Liveness.DYING:
            told(lambda: engine.end_leftovers(order_of(attempt)))
        becomes(engine, attempt, Liveness.LOST)

    assert told(lambda: read_whole(engine, order_of(attempt), "exit.json")) is None


def test_stopped_supervisor_is_adopted_when_it_goes_on(engine, prepared, on_node):
    attempt = prepared()

    with running(engine, attempt) as pid:
        os.kill(pid, signal.SIGSTOP)
        heartbeat = on_node(attempt).heartbeat
        wait_until(heartbeat.exists)
        long_ago = b"0" * len(heartbeat.read_bytes())
        heartbeat.write_bytes(long_ago)
        becomes(engine, attempt, Liveness.UNKNOWN)
        os.kill(pid, signal.SIGCONT)
        becomes(engine, attempt, Liveness.ALIVE)


def test_attempt_of_another_boot_is_lost_though_its_processes_numbers_live(engine, prepared, on_node):
    attempt = prepared()
    folder = on_node(attempt)
    ours = {"pid": os.getpid(), "start_ticks": 1, "nonce": attempt.nonce, "number": attempt.number}

    write_record(folder.supervisor, {**ours, "boot_id": "another boot"})
    folder.lock.touch()

    becomes(engine, attempt, Liveness.LOST)


def test_no_supervisor_starts_after_it_was_forestalled(engine, prepared):
    attempt = prepared()
    folder = launcher.folder_of(attempt)
    record = {"number": attempt.number, "nonce": attempt.nonce, "kind": "infra"}

    def is_ended() -> bool:
        with suppress(TimeoutError):
            engine.forestall(order_of(attempt), record)
        return engine.state(order_of(attempt)) is Liveness.ENDED

    wait_until(is_ended)
    for _ in range(5):
        with suppress(NotStarted):  # it may also say so
            engine.start(order_of(attempt), {})

    assert not folder.supervisor.exists()
    assert (read_record(folder.exit) or {})["kind"] == "infra"


def test_living_supervisor_cannot_be_forestalled(engine, prepared):
    attempt = prepared()

    with running(engine, attempt):
        assert not told(lambda: engine.forestall(order_of(attempt), {"kind": "infra"}))


@pytest.mark.parametrize("script", [b"print('up')", b"raise SystemExit(3)"], ids=["ended well", "failed"])
def test_run_that_came_and_went_keeps_its_own_record_when_it_is_forestalled_late(engine, prepared, script):
    attempt = prepared(script)
    start(engine, attempt)
    becomes(engine, attempt, Liveness.ENDED)
    folder = launcher.folder_of(attempt)
    supervisor = from_record(read_record(folder.supervisor))
    wait_until(lambda: supervisor is not None and is_over(supervisor))  # its lock is free
    ended = folder.exit.read_bytes()

    late = {"number": attempt.number, "nonce": attempt.nonce, "kind": "infra"}
    assert not told(lambda: engine.forestall(order_of(attempt), late))

    assert folder.exit.read_bytes() == ended


@pytest.mark.parametrize("hears", [True, False], ids=["hears", "deaf"])
def test_profile_is_asked_of_a_process_that_can_make_one(engine, prepared, hears):
    hearing = b"import signal\nsignal.signal(signal.SIGRTMIN + 11, lambda *_: print('asked', flush=True))\n"
    attempt = prepared(hearing + SCRIPT if hears else SCRIPT)
    folder = launcher.folder_of(attempt)

    with running(engine, attempt):
        assert told(lambda: engine.request_profile(order_of(attempt))) is hears
        if hears:
            wait_until(lambda: "asked" in folder.log(0).read_text())


def test_shell_of_a_run_answers_with_the_greeting_of_ssh(engine, prepared):
    attempt = prepared()
    if isinstance(engine, LinkedEngine):
        with running(engine, attempt), pytest.raises(NoShell, match="another server"):
            engine.open_shell(order_of(attempt))
        return

    with running(engine, attempt), told(lambda: engine.open_shell(order_of(attempt))) as shell:
        shell.settimeout(PATIENCE_S)
        assert shell.recv(100).startswith(b"SSH-2.0-")
        assert not [
            path for path in launcher.folder_of(attempt).shells.iterdir() if not path.name.startswith(".")
        ]


def test_run_that_is_over_has_no_shell(engine, prepared):
    attempt = prepared(b"print('up', flush=True)")
    start(engine, attempt)
    becomes(engine, attempt, Liveness.ENDED)

    with pytest.raises(NoShell, match="just ended"):
        told(lambda: engine.open_shell(order_of(attempt)))


def test_order_without_a_folder_is_not_sent(engine, home, db):
    nowhere = Order(uuid4(), 1, "0" * 32)

    assert not told(lambda: engine.stop(nowhere, reason="cancel", grace_s=1, saved=False))
    assert not told(lambda: engine.request_checkpoint(nowhere))
    assert told(lambda: engine.request_profile(nowhere)) is None
    with pytest.raises(NoShell, match="not there yet"):
        told(lambda: engine.open_shell(nowhere))
    assert told(lambda: engine.read(nowhere, "exit.json", 0, 10)) == b""


def test_launch_that_was_forestalled_before_it_made_a_folder_starts_nothing_later(engine, prepared):
    attempt = prepared()
    order = order_of(attempt)._replace(attempt=attempt.number + 1)

    record = {"number": order.attempt, "nonce": order.nonce, "kind": "infra"}

    def is_ended() -> bool:
        with suppress(TimeoutError):
            engine.forestall(order, record)
        return engine.state(order) is Liveness.ENDED

    wait_until(is_ended)
    with suppress(NotStarted):  # it may also say so
        engine.start(order, {})
    assert not settings.HOME.job(order.job).attempt(order.attempt).supervisor.exists()


def test_node_that_was_brought_nothing_yet_ends_a_run_that_is_forestalled(tmp_path):
    there, order = LocalPort("there", tmp_path / "there", "cpu:1"), Order(uuid4(), 1, "0" * 32)

    assert there.forestall(order, {"number": 1, "nonce": order.nonce, "kind": "infra"})

    assert there.look(order).state is Liveness.ENDED
