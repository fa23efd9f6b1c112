"""Enters the sandbox of a running attempt: its namespaces first, then the walls that its own processes have.

See namespaces(7), ioctl_ns(2) and capabilities(7).  This process is not dumpable from before it enters until it ends:
processes of the sandbox have the same user, and could otherwise reach the host's files through its descriptors and its
program.
"""

import ctypes
import errno
import fcntl
import os

from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.launch import Launch
from orchestrator.supervisor.sandbox import bwrap, landlock

_OWNER_OF_NAMESPACE = 0xB701  # NS_GET_USERNS
_KINDS = ("mnt", "ipc", "uts", "net", "pid")
_SET_DUMPABLE, _SET_SECCOMP, _DROP_BOUNDING, _SET_NO_NEW_PRIVS = 4, 22, 24, 38  # of prctl
_MODE_FILTER = 2
_CAPABILITIES_VERSION = 0x20080522
_INSTRUCTION_BYTES = 8

_libc = ctypes.CDLL(None, use_errno=True)


class _FilterProgram(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def enter(pid: int) -> None:
    """Enter all namespaces of a process in a sandbox; that of processes holds for children only.

    Raises:
        OSError: the process is gone, or the kernel refuses.
    """
    _prctl(_SET_DUMPABLE, 0)
    own = {kind: _identity(os.stat(f"/proc/self/ns/{kind}")) for kind in ("user", *_KINDS)}  # noqa: PTH116
    theirs = {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("user", *_KINDS)}
    # bubblewrap makes the mounts in one user namespace and runs the program in a second one below it.
    owner = fcntl.ioctl(theirs["mnt"], _OWNER_OF_NAMESPACE)
    users = {_identity(os.fstat(fd)): fd for fd in (owner, theirs["user"])}
    first, *then = [fd for identity, fd in users.items() if identity != own["user"]]
    _set_namespace(first)
    for kind in _KINDS:
        if _identity(os.fstat(theirs[kind])) != own[kind]:
            _set_namespace(theirs[kind])
    for fd in then:
        _set_namespace(fd)
    for fd in (owner, *theirs.values()):
        os.close(fd)


def confine(launch: Launch, folder: AttemptFolder) -> None:
    """Give up all capabilities, and take the system-call filter and Landlock of the attempt's level, for good.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_SET_DUMPABLE, 0)  # entering a user namespace and forking may have reset it
    filter_fd = bwrap.open_filter(launch)
    program = os.pread(filter_fd, 1 << 16, 0) if filter_fd is not None else b""
    _drop_capabilities()
    _prctl(_SET_NO_NEW_PRIVS, 1)
    if bwrap.uses_landlock(launch):
        # A person may stop and signal the run from the shell, which is beside it and not above it.
        landlock.restrict(bwrap.writable_places(launch, folder), scope_signals=False)
    if program:
        _load_filter(program)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _set_namespace(fd: int) -> None:
    if _libc.setns(fd, 0) != 0:
        _fail("setns")


def _drop_capabilities() -> None:
    number = 0
    while _libc.prctl(_DROP_BOUNDING, number, 0, 0, 0) == 0:
        number += 1
    if ctypes.get_errno() != errno.EINVAL or number == 0:  # EINVAL: beyond the last capability
        _fail("dropping capabilities")
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if _libc.capset(header, nothing) != 0:
        _fail("capset")


def _load_filter(program: bytes) -> None:
    text = ctypes.create_string_buffer(program, len(program))
    whole = _FilterProgram(len(program) // _INSTRUCTION_BYTES, ctypes.addressof(text))
    if _libc.prctl(_SET_SECCOMP, _MODE_FILTER, ctypes.byref(whole), 0, 0) != 0:
        _fail("seccomp")


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        _fail("prctl")


def _fail(call: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{call}: {os.strerror(number)}")
