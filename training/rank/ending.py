"""How a rank ends: its error record, the marker of a script that returned, and what finalisation would do.

Standard library only.  The interpreter's own finalisation is left out: torch aborts in it in up to two of three
otherwise finished gloo runs.
"""

# No pathlib: importing it would double the time to the script's first line.
# ruff: noqa: PTH105, PTH123

from __future__ import annotations  # an image may have a Python older than ours, which would evaluate them

import os
import sys

from . import FOLDER, PID, RANK, TYPE_CHECKING, log

if TYPE_CHECKING:
    from typing import Any, NoReturn

_FILES_WITHIN_S = 10.0


def exit_code(request: SystemExit) -> int:
    """Return the exit code of ``sys.exit(...)``, as python determines it; a text is why the script ends, and is recorded."""
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code & 0xFF
    if os.getpid() == PID:
        _record(request)
    sys.stderr.write(f"{request.code}\n")
    return 1


def fail(error: BaseException) -> NoReturn:
    """Record and print the exception that ended the script, then exit."""
    if os.getpid() == PID:
        _record(error)
    sys.excepthook(type(error), error, error.__traceback__)
    if isinstance(error, KeyboardInterrupt):
        _die_of_interrupt()
    # Do not leave the process group: that would wait for ranks that wait for us.
    _run_exit_handlers()
    end(1, finished=False)


def wind_down(code: int) -> None:
    """Do what the interpreter does at exit before it finalises modules."""
    _run_exit_handlers()
    if code == 0:
        _leave_process_group()


def end(code: int, *, finished: bool = True) -> NoReturn:
    """Write what is still in buffers, mark the rank as finished unless it failed, and exit."""
    _write_out_files()
    _flush()
    log.write_losses()
    # A child forked by the script gets here too, but it is not the rank.
    if finished and FOLDER is not None and os.getpid() == PID:
        write_whole(f"{FOLDER}/finished/rank{RANK}", f"{code}\n")
    os._exit(code)


def write_whole(path: str, text: str) -> None:
    """Write a file that nobody sees half written; a failure is printed."""
    try:
        with open(f"{path}.part", "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.replace(f"{path}.part", path)
    except OSError as error:
        sys.stderr.write(f"Berth could not write {path}: {error}\n")


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
    paths = [f"{FOLDER}/errors/rank{RANK}.json"] if FOLDER is not None else []
    paths += filter(None, [os.environ.get("TORCHELASTIC_ERROR_FILE")])
    for path in paths:
        write_whole(path, text)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 -- a user's own __str__ may raise anything
        return "(its message cannot be shown)"


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
