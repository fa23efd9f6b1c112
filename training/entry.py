"""Entry of every rank: ``PYTHON -u entry.py SCRIPT ARGS...``.  Standard library only; docs/protocol.md, rule 9.

Behaves like ``python SCRIPT ARGS...``; with ``-m MODULE`` for SCRIPT, like ``python -m MODULE ARGS...``.  In addition
it opens the rank's log, records the exception that ended the script in torchrun's format, marks that the script
returned, and exits without the interpreter's finalisation, in which torch aborts in up to two of three otherwise
finished gloo runs.
"""

# No pathlib: importing it would double the time to the script's first line.
# ruff: noqa: PTH100, PTH109, PTH112, PTH120, PTH123

from __future__ import annotations  # an image may have a Python older than ours, which would evaluate them

import os
import sys
from types import CodeType, ModuleType, TracebackType

TYPE_CHECKING = False  # typing's, which takes 9 ms to import
_HERE = os.path.dirname(os.path.abspath(__file__))
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from training.rank import FOLDER, RANK, daemons, ending, imports, log
else:  # under a name of ours: the script may have a package of its own that is called training
    _rooms = ModuleType("_berth_rooms")
    _rooms.__path__ = [_HERE]
    sys.modules[_rooms.__name__] = _rooms
    from _berth_rooms.rank import FOLDER, RANK, daemons, ending, imports, log

_OURS = (__file__, ending.__file__, "<frozen runpy>")


def main(argv: list[str]) -> NoReturn:
    """Run the script or module of ``argv`` to its end; never returns."""
    if FOLDER is not None:
        log.redirect_to(f"{FOLDER}/logs/rank{RANK}.log")
        daemons.watch_forks(FOLDER)
    _prepare()
    is_module = argv[0] == "-m"
    module = _become_main(argv[1:] if is_module else argv, is_module=is_module)
    try:
        try:
            name = _module_to_run(argv, module, is_module=is_module)
            code_object = _load_module(name, module) if name else _compile(str(module.__file__))
            exec(code_object, module.__dict__)  # noqa: S102 -- running the user's script is our purpose
        except SystemExit as request:
            request.__traceback__ = _without_us(request.__traceback__)
            code = ending.exit_code(request)
        else:
            code = 0
    except BaseException as error:  # noqa: BLE001 -- python itself catches everything here too
        error.__traceback__ = _without_us(error.__traceback__)
        ending.fail(error)
    ending.wind_down(code)
    ending.end(code)


def _prepare() -> None:
    if os.environ.pop("BERTH_DIE_WITH_PARENT", None):
        _die_with_parent()
    if os.environ.pop("BERTH_STACKS_ON_SIGUSR2", None):
        import faulthandler
        import signal

        faulthandler.register(signal.SIGUSR2, all_threads=True)
    fraction = os.environ.pop("BERTH_GPU_MEMORY_FRACTION", None)
    if fraction is not None:
        imports.limit_gpu_memory(float(fraction))
    imports.watch()


def _die_with_parent() -> None:
    """Die with torchrun: without a sandbox, nothing else ends a rank whose torchrun was killed."""
    import ctypes
    import signal

    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


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
    if os.path.isdir(f"{sys.path[0]}/training"):
        _own_name().prefer(f"{sys.path[0]}/training")
    # Makes `training` importable; last on the path, so that the user's own modules win.
    sys.path.append(os.path.dirname(_HERE))
    return module


def _module_to_run(argv: list[str], module: ModuleType, *, is_module: bool) -> str:
    """The module to run instead of a script; empty for a script.

    A program of this library keeps its name unless the job's code has a package called ``training`` as well, in
    which both would look for their modules.
    """
    if is_module:
        is_named_so = argv[1].partition(".")[0] == "training"
        return str(_own_name().of_module(argv[1])) if is_named_so else argv[1]
    if module.__file__ != f"{_HERE}/__main__.py" or len(argv) < 2:
        return ""
    return str(_own_name().of_runner(argv[1]))


def _own_name() -> Any:
    """The module that lets this library have another name; late import: few scripts need it."""
    name = "_berth_rooms.rank.own_name"
    __import__(name)
    return sys.modules[name]


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


def _without_us(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that is the script's."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1:] == ["-m"]:
        sys.stderr.write("usage: python -u entry.py SCRIPT|-m MODULE [ARGS...]\n")
        raise SystemExit(2)
    main(sys.argv[1:])
