"""Finds the rank that hangs, names it and ends it, instead of waiting half an hour for a time-out.

A thread of each rank records in memory shared by the ranks of this machine when its training last made
progress.  A rank that waits in a collective makes no progress either, but it is further than the rank
that it waits for.
"""

import contextlib
import faulthandler
import json
import mmap
import os
import signal
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from training import events
from training.report import Reporter, default_reporter

LEAST_S = 60.0
FACTOR = 10  # times the median time between two heartbeats
STOPPED_AFTER_S = 5.0  # if even its thread does not run, the whole process was stopped
EXIT_HANG = 70
_SLOT = struct.Struct("<qqdd?7x")
_STACKS_S = 0.5  # for every rank to write its stacks


@dataclass(frozen=True, slots=True)
class Beat:
    """Progress of a rank; times are monotonic, a clock that all processes of a machine share."""

    pid: int  # 0: the rank has not started
    count: int  # heartbeats of its training
    moved_s: float  # time of the newest heartbeat
    alive_s: float  # when its watching thread last ran
    waits: bool = False  # whether its training is inside a collective or a backward pass


class Beats:
    """The newest beat of each rank on this machine, in shared memory.

    The ranks meet through a file that is removed once all have opened it, so killed ranks leave nothing.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._size = world_size
        self._path = _shared_path() if world_size > 1 else None
        self._memory, self._inode = _map(self._path, world_size * _SLOT.size)
        self.write(Beat(os.getpid(), 0, 0.0, 0.0))
        self.read()

    def write(self, beat: Beat) -> None:
        offset = self._rank * _SLOT.size
        _SLOT.pack_into(self._memory, offset, beat.pid, beat.count, beat.moved_s, beat.alive_s, beat.waits)

    def read(self) -> list[Beat]:
        beats = [Beat(*_SLOT.unpack_from(self._memory, rank * _SLOT.size)) for rank in range(self._size)]
        if self._path is not None and all(beat.pid for beat in beats):
            self._remove()
        return beats

    def close(self) -> None:
        self._memory.close()
        self._remove()

    def _remove(self) -> None:
        """Remove our file, but not that of a later training with the same name."""
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                if self._path.stat().st_ino == self._inode:
                    self._path.unlink()
            self._path = None


def find_stuck(beats: Sequence[Beat], limit_s: float, now_s: float) -> list[int] | None:
    """Return the ranks that hold up the others; None while one makes progress.

    Empty if all ranks stopped at the same place.  A rank without a first heartbeat may still be compiling,
    so there is no hang before it.
    """
    if any(beat.pid == 0 or beat.count == 0 or now_s - beat.moved_s < limit_s for beat in beats):
        return None
    stopped = [rank for rank, beat in enumerate(beats) if now_s - beat.alive_s > STOPPED_AFTER_S]
    if stopped:
        return stopped
    least = min((beat.count, beat.waits) for beat in beats)
    behind = [rank for rank, beat in enumerate(beats) if (beat.count, beat.waits) == least]
    return behind if len(behind) < len(beats) or len(beats) == 1 else []


class HangWatch:
    """Watches this rank and its siblings from a thread, by calls of ``Reporter.heartbeat``.

    When no rank has made progress for ``max(least_s, 10 x the median time between heartbeats)``, every
    rank dumps its stacks, and the lowest running rank kills the stuck ones with SIGKILL.  If all ranks
    stopped at the same place, it ends itself.
    """

    def __init__(
        self,
        reporter: Reporter | None = None,
        *,
        least_s: float = LEAST_S,
        look_every_s: float = 1.0,
        rank: int | None = None,
        world_size: int | None = None,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._reporter = reporter or default_reporter()
        self._least_s, self._look_every_s, self._end = least_s, look_every_s, end
        self._rank = int(os.environ.get("LOCAL_RANK", "0")) if rank is None else rank
        size = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if world_size is None else world_size
        self._beats = Beats(self._rank, size)
        self._before = self._reporter.beats
        self._count, self._moved_s = 0, time.monotonic()
        self._gaps_s: deque[float] = deque(maxlen=64)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="berth-hang", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop watching: the training is over."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._beats.close()

    @property
    def limit_s(self) -> float:
        return max(self._least_s, FACTOR * statistics.median(self._gaps_s)) if self._gaps_s else self._least_s

    def look(self, now_s: float) -> None:
        """Record this rank's progress, and end a hang."""
        count = self._reporter.beats - self._before
        if count != self._count:
            if self._count:
                self._gaps_s.append((now_s - self._moved_s) / (count - self._count))
            self._count, self._moved_s = count, now_s
        self._beats.write(Beat(os.getpid(), count, self._moved_s, now_s, _main_thread_waits()))
        beats = self._beats.read()
        stuck = find_stuck(beats, self.limit_s, now_s)
        if stuck is not None:
            self._end_hang(beats, stuck, now_s)

    def _run(self) -> None:
        while not self._stopping.wait(self._look_every_s):
            self.look(time.monotonic())

    def _end_hang(self, beats: Sequence[Beat], stuck: list[int], now_s: float) -> None:
        faulthandler.dump_traceback(all_threads=True)
        sentence = describe_hang(beats, stuck, now_s)
        acting = min(
            (rank for rank, beat in enumerate(beats) if now_s - beat.alive_s <= STOPPED_AFTER_S),
            default=self._rank,
        )
        if self._rank != acting:
            self._stopping.wait(
                10 * _STACKS_S
            )  # the acting rank kills the stuck ones; if it fails, the next look does
            return
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()
        self._reporter.event(events.HANG_EVENT, ranks=",".join(map(str, stuck)), reason=sentence)
        self._reporter.flush()
        time.sleep(_STACKS_S)
        _record(stuck[0] if stuck else self._rank, sentence)
        for rank in stuck:
            if rank != self._rank:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(beats[rank].pid, signal.SIGKILL)
        if not stuck or self._rank in stuck:
            self._end(EXIT_HANG)


@contextlib.contextmanager
def watch_hangs(reporter: Reporter) -> Iterator[None]:
    """Watch during a training; a single process outside Berth, perhaps in a debugger, is not watched."""
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) == 1 and "BERTH_ATTEMPT_FOLDER" not in os.environ:
        yield
        return
    watch = HangWatch(reporter)
    watch.start()
    try:
        yield
    finally:
        watch.stop()


def describe_hang(beats: Sequence[Beat], stuck: Sequence[int], now_s: float) -> str:
    """Say which ranks hang, for how long, and where to look."""
    still_s = now_s - max(beat.moved_s for beat in beats)
    if not stuck:
        return f"No rank has made progress for {still_s:.0f} s, and all are at the same place. Their stacks are in their logs."
    who = f"Rank {stuck[0]} has" if len(stuck) == 1 else f"Ranks {', '.join(map(str, stuck))} have"
    waiting = len(beats) - len(stuck)
    others = f", and {waiting} other{'s wait' if waiting > 1 else ' waits'}" if waiting else ""
    why = " The process was stopped." if now_s - beats[stuck[0]].alive_s > STOPPED_AFTER_S else ""
    return (
        f"{who} made no progress for {still_s:.0f} s{others}.{why} The stacks are in the logs of the ranks."
    )


def _main_thread_waits() -> bool:
    """Return whether the main thread is in a collective, or in a backward pass, which exchanges gradients."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        path = frame.f_code.co_filename
        if "/torch/distributed/" in path or "/torch/autograd/" in path:
            return True
        frame = frame.f_back
    return False


def _record(rank: int, sentence: str) -> None:
    """Write the error record for a killed rank, which cannot write its own, in torchrun's format."""
    folder = os.environ.get("BERTH_ATTEMPT_FOLDER")
    if folder is None:
        return
    now_ns = time.time_ns()
    extra = {"py_callstack": "", "timestamp": str(now_ns // 10**9), "time_ns": str(now_ns)}
    text = json.dumps({"message": {"message": f"RankHangs: {sentence}", "extraInfo": extra}})
    with contextlib.suppress(OSError):
        (Path(folder) / "errors" / f"rank{rank}.json").write_text(text)


def _shared_path() -> Path:
    """Return the path shared by exactly the ranks that one launcher started together."""
    port, restart = (os.environ.get(name, "0") for name in ("MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"))
    return Path(tempfile.gettempdir()) / f"berth-beats-{os.getuid()}-{port}-{restart}-{os.getppid()}"


def _map(path: Path | None, size: int) -> tuple[mmap.mmap, int]:
    """Map the shared memory; return it with the inode of its file."""
    if path is None:
        return mmap.mmap(-1, size), 0
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to another user; remove it.")
        os.ftruncate(descriptor, size)  # new bytes are zero: those ranks have not started
        return mmap.mmap(descriptor, size), status.st_ino
    finally:
        os.close(descriptor)
