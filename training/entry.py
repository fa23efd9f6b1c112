"""Entry of every rank: ``PYTHON -u entry.py SCRIPT ARGS...``.  Standard library only; docs/protocol.md, rule 9.

Behaves like ``python SCRIPT ARGS...``; with ``-m MODULE`` for SCRIPT, like ``python -m MODULE ARGS...``.  In addition it opens the rank's log, records the exception that ended
the script in torchrun's format, marks that the script returned, and exits without the interpreter's
finalisation, in which torch aborts in up to two of three otherwise finished gloo runs.
"""

# No pathlib: importing it would double the time to the script's first line.
# ruff: noqa: PTH100, PTH109, PTH112, PTH119, PTH105, PTH120, PTH123

from __future__ import annotations  # an image may have a Python older than ours, which would evaluate them

import _thread
import errno
import io
import os
import sys
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

_FOLDER = os.environ.get("BERTH_ATTEMPT_FOLDER")
_RANK = os.environ.get("RANK", "0")
_PID = os.getpid()
_FILES_WITHIN_S = 10.0
_LEAVES_WITHIN_S = 0.5
# Packages with functions that a room of ours wraps, once the script imports one of them.
_TRACKERS = frozenset(
    {
        "wandb",
        "trackio",
        "mlflow",
        "comet_ml",
        "aim",
        "clearml",
        "tensorboardX",
        "lightning",
        "lightning_fabric",
        "pytorch_lightning",
        "stable_baselines3",
    }
)
_TORCH_TRACKER = "torch.utils.tensorboard"
_OPTIMIZERS = "torch.optim.optimizer"
_TRAINERS = frozenset({"transformers", "lightning", "pytorch_lightning", "ultralytics"})


def main(argv: list[str]) -> NoReturn:
    """Run the script or module of ``argv`` to its end; never returns."""
    if _FOLDER is not None:
        _open_log(f"{_FOLDER}/logs/rank{_RANK}.log")
        _watch_forks(_FOLDER)
    _prepare()
    is_module = argv[0] == "-m"
    module = _become_main(argv[1:] if is_module else argv, is_module=is_module)
    try:
        try:
            name = _module_to_run(argv, module, is_module=is_module)
            code_object = _load_module(name, module) if name else _compile(str(module.__file__))
            exec(code_object, module.__dict__)  # noqa: S102 -- running the user's script is our purpose
        except SystemExit as request:
            code = _exit_code(request)
        else:
            code = 0
    except BaseException as error:  # noqa: BLE001 -- python itself catches everything here too
        _fail(error)
    _wind_down(code)
    _end(code)


def _open_log(path: str) -> None:
    """Open the log before anything else, so that all later errors are in it."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    _PatientLog.losses = _LossCount(path.removesuffix(".log") + ".lost")
    sys.stdout = _patient(sys.stdout, 1)
    sys.stderr = _patient(sys.stderr, 2)


class _PatientLog(io.FileIO):
    """A log that drops lines while the disk is full, so that a ``print`` does not end the training."""

    lost_bytes = 0  # not yet mentioned in the log
    losses: _LossCount | None = None

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        size, done = view.nbytes, 0
        try:
            if self.lost_bytes:
                super().write(b"\n[berth: %d bytes were not logged, the disk was full]\n" % self.lost_bytes)
                self.lost_bytes = 0
            # On the last free block of a disk, only a part is written.
            while done < size and (written := super().write(view[done:])):
                done += written
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.lost_bytes += size - done
            if self.losses is not None:
                self.losses.add(size - done)
            return size
        return done


class _LossCount:
    """Counts the bytes that a rank could not log, in a file allocated before the disk was full.

    The log itself cannot mention them if the run ends, or is killed, while the disk is full.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._new_bytes = 0  # not in the file yet
        self._lock = _thread.RLock()
        os.register_at_fork(after_in_child=self._begin_in_child)
        self._change(os.O_CREAT)

    def add(self, lost_bytes: int) -> None:
        with self._lock:
            self._new_bytes += lost_bytes
            if self._new_bytes:
                self._change()

    def _begin_in_child(self) -> None:
        self._lock = _thread.RLock()
        self._new_bytes = 0

    def _change(self, flags: int = 0) -> None:
        """Add new bytes to the file; after a failure the next loss, or the end, retries."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
        except OSError:
            return
        try:
            os.lockf(fd, os.F_TLOCK, 0)  # forked children log as well; never wait
            total = int(os.pread(fd, 20, 0) or b"0") + self._new_bytes
            os.pwrite(fd, b"%020d\n" % total, 0)
        except (OSError, ValueError):
            return
        else:
            self._new_bytes = 0
        finally:
            os.close(fd)


def _patient(stream: Any, descriptor: int) -> io.TextIOWrapper:
    """Wrap the descriptor like ``python -u`` does, over a patient log."""
    log = _PatientLog(descriptor, "wb", closefd=False)
    log.name = stream.name
    return io.TextIOWrapper(log, stream.encoding, stream.errors, "\n", write_through=True)


def _prepare() -> None:
    if os.environ.pop("BERTH_DIE_WITH_PARENT", None):
        _die_with_parent()
    if os.environ.pop("BERTH_STACKS_ON_SIGUSR2", None):
        import faulthandler
        import signal

        faulthandler.register(signal.SIGUSR2, all_threads=True)
    fraction = os.environ.pop("BERTH_GPU_MEMORY_FRACTION", None)
    if fraction is not None:
        _limit_gpu_memory(float(fraction))
    _watch_imports()


def join_command() -> None:
    """What a Python that a job's command starts has of a rank; other processes of the command inherit the settings."""
    fraction = os.environ.get("BERTH_GPU_MEMORY_FRACTION")
    if fraction is not None:
        _limit_gpu_memory(float(fraction))
    _watch_imports()


def _watch_imports() -> None:
    """Read what trackers get, let known trainers resume and steps be profiled, unless the job's owner does not want it."""
    if _FOLDER is None:
        return
    if os.environ.get("TRACKER_TEE") != "off":
        told = "read what trackers get"
        sys.meta_path.insert(0, _Finder({*_TRACKERS, _TORCH_TRACKER}, "tee", [_metrics_file()], told))
    if os.environ.get("PROFILE_ON_REQUEST") != "off" and _metrics_file() is not None:
        settings = [_metrics_file(), os.environ.get("BERTH_OUTPUT_DIR")]
        sys.meta_path.insert(0, _Finder({_OPTIMIZERS}, "profiling", settings, "profile this script"))
    if os.environ.get("TRAINER_RESUME") != "off":
        sys.meta_path.insert(0, _Finder(_TRAINERS, "resuming", [], "resume trainers by itself"))


class _Finder:
    """Loads a room that wraps functions when the script imports one of its packages; most scripts import none."""

    def __init__(self, names: Any, room: str, settings: list[Any], purpose: str) -> None:
        self._names, self._room, self._settings, self._purpose = names, room, settings, purpose

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in self._names or self not in sys.meta_path:
            return None
        try:
            hook = _load(self._room).start(*self._settings)
        except Exception as error:  # noqa: BLE001 -- the script's import must work without us
            sys.meta_path.remove(self)
            sys.stderr.write(f"Berth does not {self._purpose}: {type(error).__name__}: {error}\n")
            return None
        sys.meta_path[sys.meta_path.index(self)] = hook
        return hook.find_spec(fullname, path, target)


def _load(room: str) -> Any:
    """The hook of a room, by its folder: the script may have a module of its own that is called training."""
    if "_berth_rooms" not in sys.modules:
        package = ModuleType("_berth_rooms")
        package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
        sys.modules[package.__name__] = package
    name = f"_berth_rooms.{room}.hook"
    __import__(name)
    return sys.modules[name]


def _metrics_file() -> str | None:
    """Where the trackers' values go: of rank 0 only, as those that a script reports itself."""
    return os.environ.get("BERTH_METRICS_FILE") if _RANK == "0" else None


def _die_with_parent() -> None:
    """Die with torchrun: without a sandbox, nothing else ends a rank whose torchrun was killed."""
    import ctypes
    import signal

    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _limit_gpu_memory(fraction: float) -> None:
    """Limit torch's allocator once the script imports torch, without starting CUDA earlier than the script."""
    from collections.abc import Sequence
    from importlib.abc import Loader, MetaPathFinder
    from importlib.machinery import ModuleSpec, PathFinder

    class _TorchFinder(MetaPathFinder):
        def find_spec(
            self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
        ) -> ModuleSpec | None:
            if fullname != "torch":
                return None
            sys.meta_path.remove(self)
            spec = PathFinder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                _call_after_load(spec.loader)
            return spec

    def _call_after_load(loader: Loader) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            # Deferred until CUDA starts: calling set_per_process_memory_fraction directly would start it now.
            module.cuda._lazy_call(lambda: module.cuda.set_per_process_memory_fraction(fraction))

        loader.exec_module = exec_module  # type: ignore[method-assign]  # this one loader loads torch only

    sys.meta_path.insert(0, _TorchFinder())


def _become_main(argv: list[str], *, is_module: bool) -> ModuleType:
    """Make a fresh ``__main__`` as in ``python SCRIPT``; pickle and spawned workers find the script through it."""
    module = ModuleType("__main__")
    module.__dict__["__cached__"] = None
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    if not is_module:
        from _frozen_importlib_external import SourceFileLoader  # importing importlib.machinery takes 7 ms

        module.__file__ = os.path.abspath(argv[0])
        module.__loader__ = SourceFileLoader("__main__", module.__file__)
    sys.modules["_berth_entry"] = sys.modules["__main__"]  # keeps our own globals alive
    sys.modules["__main__"] = module
    sys.argv = argv
    sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(argv[0]))
    here = os.path.dirname(os.path.abspath(__file__))
    if os.path.isdir(f"{sys.path[0]}/training"):
        _load_file(f"{here}/own_name.py").prefer(f"{sys.path[0]}/training")
    # Makes `training` importable; last on the path, so that the user's own modules win.
    sys.path.append(os.path.dirname(here))
    return module


def _module_to_run(argv: list[str], module: ModuleType, *, is_module: bool) -> str:
    """The module to run instead of a script; empty for a script.

    A program of this library keeps its name unless the job's code has a package called ``training`` as well, in
    which both would look for their modules.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    own_name = f"{here}/own_name.py"
    if is_module:
        is_named_so = argv[1].partition(".")[0] == "training"
        return str(_load_file(own_name).of_module(argv[1])) if is_named_so else argv[1]
    if module.__file__ != f"{here}/__main__.py" or len(argv) < 2:
        return ""
    return str(_load_file(own_name).of_runner(argv[1]))


def _load_file(path: str) -> Any:
    """A module of ours by its path: the script may have a package of its own that is called training."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(f"_berth_{os.path.basename(path)[:-3]}", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load_module(name: str, main_module: ModuleType) -> CodeType:
    """The code of a module or of a package's ``__main__``, and what ``python -m`` sets for it.

    Raises:
        ImportError: there is no such module; the message says which part is missing.
    """
    import runpy

    _, spec, code = runpy._get_module_details(name)  # type: ignore[attr-defined]  # what ``python -m`` calls
    main_module.__file__ = sys.argv[0] = spec.origin
    main_module.__loader__, main_module.__package__ = spec.loader, spec.parent
    main_module.__spec__ = spec
    main_module.__dict__["__cached__"] = spec.cached
    result: CodeType = code
    return result


def _compile(script: str) -> CodeType:
    with open(script, "rb") as file:
        return compile(file.read(), script, "exec", dont_inherit=True)


def _exit_code(request: SystemExit) -> int:
    """Return the exit code of ``sys.exit(...)``, as python determines it; a text is why the script ends, and is recorded."""
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code & 0xFF
    if os.getpid() == _PID:
        request.__traceback__ = _without_us(request.__traceback__)
        _record(request)
    sys.stderr.write(f"{request.code}\n")
    return 1


def _fail(error: BaseException) -> NoReturn:
    """Record and print the exception without our own frames, then exit."""
    error.__traceback__ = _without_us(error.__traceback__)
    if os.getpid() == _PID:
        _record(error)
    sys.excepthook(type(error), error, error.__traceback__)
    if isinstance(error, KeyboardInterrupt):
        _die_of_interrupt()
    # Do not leave the process group: that would wait for ranks that wait for us.
    _run_exit_handlers()
    _end(1, finished=False)


def _without_us(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        trace = trace.tb_next
    return trace


def _record(error: BaseException) -> None:
    """Write the error record where Berth and torchrun look for it."""
    import json
    import time
    import traceback

    now_ns = time.time_ns()
    text = json.dumps(
        {
            "message": {
                "message": f"{type(error).__name__}: {_text_of(error)}"[:65536],
                "extraInfo": {
                    "py_callstack": "".join(
                        traceback.format_exception(type(error), error, error.__traceback__)
                    )[-262144:],
                    "timestamp": str(now_ns // 1_000_000_000),
                    "time_ns": str(now_ns),
                },
            }
        }
    )
    paths = [f"{_FOLDER}/errors/rank{_RANK}.json"] if _FOLDER is not None else []
    paths += filter(None, [os.environ.get("TORCHELASTIC_ERROR_FILE")])
    for path in paths:
        _write_whole(path, text)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 -- a user's own __str__ may raise anything
        return "(its message cannot be shown)"


def _write_whole(path: str, text: str) -> None:
    try:
        with open(f"{path}.part", "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.replace(f"{path}.part", path)
    except OSError as error:
        sys.stderr.write(f"Berth could not write {path}: {error}\n")


def _wind_down(code: int) -> None:
    """Do what the interpreter does at exit before it finalises modules."""
    _run_exit_handlers()
    if code == 0:
        _leave_process_group()


def _run_exit_handlers() -> None:
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()  # waits for threads that are not daemons
    import atexit

    atexit._run_exitfuncs()


def _leave_process_group() -> None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    try:
        distributed.destroy_process_group()
    except Exception:  # noqa: BLE001 -- the script has already finished
        sys.excepthook(*sys.exc_info())


def _end(code: int, *, finished: bool = True) -> NoReturn:
    _write_out_files()
    _flush()
    if _PatientLog.losses is not None:
        _PatientLog.losses.add(0)
    # A child forked by the script gets here too, but it is not the rank.
    if finished and _FOLDER is not None and os.getpid() == _PID:
        _write_whole(f"{_FOLDER}/finished/rank{_RANK}", f"{code}\n")
    os._exit(code)


def _watch_forks(folder: str) -> None:
    """Note at the exit of a rank how many copies of it go on as daemons, as they do if the script becomes one.

    Its sandbox ends with it, so nobody outside can see them.
    """
    forks: list[bool] = []
    os.register_at_fork(after_in_parent=lambda: forks.append(True) if not forks else None)
    really_exit = os._exit

    def exit_now(status: int) -> NoReturn:
        if status == 0 and forks and os.getpid() == _PID:
            try:
                if count := _count_daemons():
                    _write_whole(f"{folder}/finished/left{_RANK}", f"{count}\n")
            finally:
                really_exit(status)
        really_exit(status)

    # A script may hand it to another process, which then finds its own by these names.
    exit_now.__module__, exit_now.__qualname__, exit_now.__name__ = "os", "_exit", "_exit"
    os._exit = exit_now  # for the script, too


def _count_daemons() -> int:
    """How many copies of this process live on: in another session, or forked by the script itself.

    A copy that was forked just now gets a moment to leave for a session of its own, or to end.
    """
    import time

    until_s = time.monotonic() + _LEAVES_WITHIN_S
    was_empty = False  # a copy that forks and exits during a look hides both; the next look finds the second
    while True:
        copies = _copies()
        sessions = [_session_of(pid) for pid in copies]
        count = sum(session not in (None, os.getsid(0)) for session in sessions)
        if count or (was_empty and not sessions):
            return count
        if time.monotonic() > until_s:
            return _count_own_forks(copies)
        was_empty = not sessions
        time.sleep(0.0 if was_empty else 0.01)


def _count_own_forks(copies: list[int]) -> int:
    """How many of these copies are no workers: multiprocessing does not know them, and no copy is their parent."""
    process = sys.modules.get("multiprocessing.process")
    started = [getattr(child, "_popen", None) for child in getattr(process, "_children", ())]
    workers = {getattr(popen, "pid", None) for popen in started}
    return sum(pid not in workers and _parent_of(pid) not in (None, *copies) for pid in copies)


def _parent_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):  # it has just ended
        return None


def _copies() -> list[int]:
    """Processes that were forked from this one and live; programs that they executed have other arguments."""
    own = _start_of("self")
    names = os.listdir("/proc")  # noqa: PTH208 -- names alone
    pids = (name for name in names if name.isdigit() and int(name) != _PID)
    return [] if own is None else [int(pid) for pid in pids if _start_of(pid) == own]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:  # it has just ended
        return None


def _start_of(pid: str) -> tuple[bytes, bytes] | None:
    """The arguments and the environment that a process began with; None if it is gone or another user's."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            arguments = file.read()
        with open(f"/proc/{pid}/environ", "rb") as file:
            return arguments, file.read()
    except OSError:
        return None


def _write_out_files() -> None:
    """Flush files that the script left open, as finalisation would, for at most ten seconds."""
    import threading

    writing = threading.Thread(target=_write_out, name="berth-files", daemon=True)
    try:
        writing.start()
    except RuntimeError:  # the limit on threads is reached
        _write_out()
    else:
        writing.join(_FILES_WITHIN_S)  # a daemon thread may hold a file's lock for ever


def _write_out() -> None:
    import _io
    import gc

    gc.unfreeze()  # a script may have frozen its objects
    # type(), because __class__ may run the script's code.
    files: list[Any] = [item for item in gc.get_objects() if issubclass(type(item), _io._IOBase)]
    # Wrappers first; compressed files need a close for their trailer.
    wrappers = [file for file in files if isinstance(file, _io.TextIOWrapper)]
    compressed = [file for file in files if type(file).__module__ in {"gzip", "bz2", "lzma"}]
    for finish in (
        *(file.flush for file in wrappers),
        *(file.close for file in compressed),
        *(file.flush for file in files),
    ):
        try:
            finish()
        except (OSError, ValueError):  # closed, read-only, or a pipe without a reader
            continue


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # the script closed or replaced it
            continue


def _die_of_interrupt() -> NoReturn:
    import signal

    _run_exit_handlers()
    _write_out_files()
    _flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    os._exit(130)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1:] == ["-m"]:
        sys.stderr.write("usage: python -u entry.py SCRIPT|-m MODULE [ARGS...]\n")
        raise SystemExit(2)
    main(sys.argv[1:])
