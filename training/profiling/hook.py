"""Waits for a request, which is a signal, and profiles the steps of the script's optimizer that follow."""

import atexit
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, Final

from ..rank.import_hook import ImportHook  # noqa: TID252 -- the entry loads the room under another name
from .timeline import summarise

SIGNAL: Final = signal.SIGRTMIN + 11  # as orchestrator.supervisor.ranks.stopping sends it
MODULE: Final = "torch.optim.optimizer"
MOST_STEPS = 10
LONGEST_S = 10.0  # then the step that runs is the last
LARGEST_TRACE_BYTES = 512 << 20  # of JSON; a larger trace is kept and not summed up
_SILENT: Final = "99"  # above each level of Kineto's
FOLDER: Final = "profile"  # of the output folder


class Profiler:
    """Profiles steps when asked; nothing of it ever raises into the script.

    Args:
        tell: gets what came of a request, as the fields of an event.
        output: the folder for traces; without one they are not kept.
    """

    def __init__(self, tell: Callable[[dict[str, float | str]], None], output: str | None) -> None:
        self._tell, self._output = tell, output
        self._wanted = False
        self._profile: _Profile | None = None
        self._is_at_exit = False

    def install(self, module: ModuleType) -> None:
        """Be called after each step of any optimizer.  Without the hook, or outside the main thread, no request is heard."""
        register = getattr(module, "register_optimizer_step_post_hook", None)
        is_main = threading.current_thread() is threading.main_thread()
        if register is None or not is_main or signal.getsignal(SIGNAL) is not signal.SIG_DFL:
            return
        register(self._stepped)
        signal.signal(SIGNAL, self._asked)
        signal.siginterrupt(SIGNAL, False)

    def _asked(self, *_: object) -> None:
        self._wanted = True

    def _stepped(self, optimizer: object, *_: object) -> None:
        if self._profile is None and not self._wanted:
            return
        try:
            self._step(optimizer)
        except Exception as error:  # noqa: BLE001 -- torch's profiler may refuse; the training goes on
            self._profile, self._wanted = None, False
            self._tell({"event": "profile_failed", "reason": f"{type(error).__name__}: {error}"[:300]})

    def _step(self, optimizer: object) -> None:
        if self._profile is None:
            self._wanted = False
            self._profile = _Profile(id(optimizer))
            if not self._is_at_exit:
                self._is_at_exit = True
                atexit.register(self._end, at_exit=True)
        elif self._profile.is_over_after(id(optimizer)):
            self._end()

    def _end(self, *, at_exit: bool = False) -> None:
        profile, self._profile = self._profile, None
        if profile is None:
            return
        profile.stop()
        if at_exit:  # nobody would wait for another thread
            self._write(profile)
            return
        writing = threading.Thread(target=self._write, args=(profile,), name="berth-profile")
        with suppress(RuntimeError):  # the limit on threads is reached, or the interpreter ends
            writing.start()
            return
        self._write(profile)

    def _write(self, profile: "_Profile") -> None:
        try:
            name = _free_name(self._output)
            path = f"{self._output}/{name}" if name else f"/tmp/berth-profile-{os.getpid()}.json"  # noqa: S108 -- the job's own
            self._tell({"event": "profile", **profile.figures(path), "trace": name})
            if not name:
                os.unlink(path)  # noqa: PTH108 -- no pathlib here
        except Exception as error:  # noqa: BLE001 -- a full disk; traces of another version of torch
            self._tell({"event": "profile_failed", "reason": f"{type(error).__name__}: {error}"[:300]})


class _Profile:
    """Torch's profiler over some steps of the optimizer that stepped first."""

    def __init__(self, optimizer: int) -> None:
        # Kineto reads this at its first use, and would write a line to the script's log at each start and stop.
        os.environ.setdefault("KINETO_LOG_LEVEL", _SILENT)
        import torch
        from torch.profiler import ProfilerActivity, profile

        self._optimizer, self._steps = optimizer, 0
        cuda: Any = torch.cuda
        self._cuda = cuda if cuda.is_available() and cuda.is_initialized() else None
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])]
        self._thread = threading.get_native_id()
        self._profiler = profile(activities=activities)
        self._wait()
        self._profiler.start()
        self._began_s = time.perf_counter()
        self._wall_s = 0.0

    def is_over_after(self, optimizer: int) -> bool:
        """Count a step, and tell whether it was the last.  A second optimizer's steps are parts of the first's."""
        if optimizer != self._optimizer:
            return False
        self._steps += 1
        return self._steps >= MOST_STEPS or time.perf_counter() - self._began_s >= LONGEST_S

    def stop(self) -> None:
        self._wait()
        self._wall_s = time.perf_counter() - self._began_s
        self._profiler.stop()

    def figures(self, path: str) -> dict[str, float | str]:
        """Write the trace, and sum it up."""
        self._profiler.export_chrome_trace(path)
        trace = _read_trace(path)
        parts = summarise(trace, self._wall_s, self._thread) if trace is not None else {}
        return {"steps": self._steps, "wall_s": round(self._wall_s, 6), **parts}

    def _wait(self) -> None:
        if self._cuda is not None:
            self._cuda.synchronize()


def _read_trace(path: str) -> Any:
    import gzip

    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        text = file.read(LARGEST_TRACE_BYTES + 1)
    return json.loads(text) if len(text) <= LARGEST_TRACE_BYTES else None


def _free_name(output: str | None) -> str:
    """The first free name of a trace, from the output folder on; empty where there is no such folder."""
    if not output:
        return ""
    os.makedirs(f"{output}/{FOLDER}", exist_ok=True)  # noqa: PTH103
    taken = set(os.listdir(f"{output}/{FOLDER}"))  # noqa: PTH208
    number = next(n for n in range(1, len(taken) + 2) if f"trace-{n}.json.gz" not in taken)
    return f"{FOLDER}/trace-{number}.json.gz"


def start(metrics_file: str, output: str | None) -> ImportHook:
    """Watch for torch's optimizers from now on."""

    def tell(fields: dict[str, float | str]) -> None:
        line = json.dumps({**fields, "time": round(time.time(), 3)}, separators=(",", ":"))
        try:
            fd = os.open(metrics_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.write(fd, line.encode("ascii") + b"\n")
            os.close(fd)
        except OSError as error:  # the disk is full
            sys.stderr.write(f"Berth could not write the profile: {error}\n")

    return ImportHook({MODULE}, Profiler(tell, output).install)
