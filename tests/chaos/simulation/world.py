"""What surrounds the code under test: clock, processes, supervisors, queue, and a database that fails."""

import fcntl
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2026, 1, 1, tzinfo=UTC)


class Died(BaseException):
    """The process that acts is gone: nothing of it runs any more, not even its handlers."""


@dataclass
class Supervised:
    """A supervisor and its ranks, as the rest of the world sees them."""

    folder: Any
    nonce: str
    job: str
    number: int
    lock: int
    alive: bool = True  # the supervisor
    ranks: bool = True  # its processes
    silent: bool = False


@dataclass
class World:
    """Everything around the code under test."""

    chance: random.Random
    home: Any
    elapsed_s: float = 0.0
    wall_offset_s: float = 0.0
    boot: str = "boot-0"
    queue: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    supervised: list[Supervised] = field(default_factory=list)
    fail_next: str = ""  # "die", "refuse", "commit": what the next queries meet
    fail_after: int = 0
    history: list[str] = field(default_factory=list)

    def now(self) -> datetime:
        return START + timedelta(seconds=self.elapsed_s + self.wall_offset_s)

    def send(self, name: str, *arguments: Any, **named: Any) -> None:
        self.queue.append((name, arguments, named))

    # What launcher and agent see of processes

    def spawn(self, folder: Any, *, python: str, secrets: Any) -> int:
        from orchestrator.supervisor.protocol.records import read_record, write_record
        from orchestrator.supervisor.spawn import SpawnFailed

        if self.chance.random() < 0.05:
            raise SpawnFailed("No supervisor showed itself.")
        lock = os.open(folder.lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return 1
        if folder.supervisor.exists() or folder.exit.exists():
            os.close(lock)
            return 1
        launch = read_record(folder.launch) or {}
        one = Supervised(
            folder, str(launch["nonce"]), str(launch["job_id"]), int(str(launch["number"])), lock
        )
        running = [each for each in self.supervised if each.job == one.job and (each.alive or each.ranks)]
        assert not running, f"I2: attempt {one.number} starts beside {[each.number for each in running]}"
        self.supervised.append(one)
        identity = {"boot_id": self.boot, "pid": 2**22 - 1, "start_ticks": 1, "nonce": one.nonce}
        write_record(folder.supervisor, {**identity, "number": one.number})
        self.beat()
        return 1

    def with_nonce(self, nonce: str) -> list[int]:
        return [index + 1 for index, one in enumerate(self.supervised) if one.nonce == nonce and one.ranks]

    def send_signal(self, process: Any, number: int) -> bool:
        self.supervised[process.pid - 1].ranks = False
        return True

    def identify(self, pid: int) -> Any:
        from orchestrator.supervisor.linux.processes import ProcessId

        return ProcessId(self.boot, pid, 1) if self.supervised[pid - 1].ranks else None

    def beat(self) -> None:
        for one in self.supervised:
            if one.alive and not one.silent:
                one.folder.heartbeat.write_bytes(b"%020d\n" % int(self.elapsed_s * 1e9))

    def end(self, one: Supervised, kind: str) -> None:
        from orchestrator.supervisor.protocol.records import write_record

        record = {"number": one.number, "nonce": one.nonce, "kind": kind, "detail": "Ended.", "run_s": 3.0}
        write_record(one.folder.exit, {**record, "ranks": [{"rank": 0, "finished": kind == "ok"}]})
        one.ranks = False
        self.release(one)

    def release(self, one: Supervised) -> None:
        if one.alive:
            one.alive = False
            os.close(one.lock)

    def living(self) -> list[Supervised]:
        return [one for one in self.supervised if one.alive]

    # What the database does

    def on_query(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        from django.db import OperationalError

        if self.fail_next in {"die", "refuse"}:
            self.fail_after -= 1
            if self.fail_after <= 0:
                what, self.fail_next = self.fail_next, ""
                raise Died if what == "die" else OperationalError("database is locked")
        return execute(sql, params, many, context)

    def on_commit(self, commit: Callable[[], None]) -> None:
        """Executed, then reported as failed (F43)."""
        from django.db import OperationalError

        commit()
        if self.fail_next == "commit":
            self.fail_after -= 1
            if self.fail_after <= 0:
                self.fail_next = ""
                raise OperationalError("the connection broke")
