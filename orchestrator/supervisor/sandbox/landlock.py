"""Restricts with Landlock what a run may write, as a second wall behind the sandbox's mounts.

Also blocks abstract Unix sockets of other processes, which no mount hides on a shared network.  See the kernel's
userspace-api/landlock.rst.

Runs inside the sandbox by file path: ``PYTHON -I -S landlock.py COUNT WRITABLE... COMMAND...``.  No code of the job
has run before it.
"""

import ctypes
import os
import struct
import sys

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every processor
_ASK_VERSION = 1
_PATH_BENEATH = 1
_SET_NO_NEW_PRIVS = 38  # of prctl

_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_OF_A_FILE = _WRITE_FILE | _TRUNCATE
# Remove folders and files; make folders, files, sockets, pipes and links; move between folders.
_OF_A_FOLDER = _OF_A_FILE | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 12 | 1 << 13
_DEVICE_NODES = 1 << 6 | 1 << 11  # never allowed
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1
_MOVES_SINCE = 2  # version 1 forbids moves between folders, which scripts need
_TRUNCATE_SINCE, _SCOPES_SINCE = 3, 6

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def version() -> int:
    """The kernel's version of Landlock; 0 without Landlock, or with a version too old for us."""
    kernel_version = _libc.syscall(
        ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_VERSION)
    )
    return int(kernel_version) if kernel_version >= _MOVES_SINCE else 0


def restrict(writable: list[str], *, scope_signals: bool = True) -> None:
    """Allow this process and its descendants to write only to these files and folders, irrevocably.

    Ignores missing paths.

    Args:
        scope_signals: forbid signals to processes that are not below this one.

    Raises:
        OSError: the kernel refuses.
    """
    kernel_version = version()
    handled = _OF_A_FOLDER | _DEVICE_NODES
    if kernel_version < _TRUNCATE_SINCE:
        handled &= ~_TRUNCATE
    scoped = _ABSTRACT_SOCKETS | (_SIGNALS if scope_signals else 0) if kernel_version >= _SCOPES_SINCE else 0
    rules = struct.pack("=QQQ", handled, 0, scoped)[: 24 if scoped else 8]
    ruleset = _call(_CREATE_RULESET, ctypes.c_char_p(rules), ctypes.c_size_t(len(rules)), ctypes.c_uint(0))
    try:
        for path in writable:
            _allow(ruleset, path, handled)
        if _libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            _fail()
        _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, handled: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights = handled & (_OF_A_FOLDER if os.path.isdir(path) else _OF_A_FILE)  # noqa: PTH112 -- pathlib costs 5 ms
        rule = struct.pack("=Qi", rights, fd)
        _call(
            *(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), ctypes.c_char_p(rule)),
            ctypes.c_uint(0),
        )
    finally:
        os.close(fd)


def _call(number: int, *arguments: object) -> int:
    result = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        _fail()
    return int(result)


def _fail() -> None:
    number = ctypes.get_errno()
    raise OSError(number, "landlock: " + os.strerror(number))


def main(arguments: list[str]) -> None:
    """Restrict this process, then become the command: ``COUNT WRITABLE... COMMAND...``."""
    count = int(arguments[0])
    restrict(arguments[1 : count + 1])
    command = arguments[count + 1 :]
    os.execv(command[0], command)  # noqa: S606 -- the command line is a list, no shell


if __name__ == "__main__":
    main(sys.argv[1:])
