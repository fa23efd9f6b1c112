"""Filters of system calls inside the sandbox.

Level 1 refuses calls that could stop or change the sandbox's own pid 1; level 2 also refuses calls that no training
needs and that attacks on the kernel start with.  The filters are 60 instructions of the kernel's own language
(Documentation/userspace-api/seccomp_filter.rst); bubblewrap loads them just before the run starts.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

# Numbers from the kernel's tables for x86_64 and aarch64 (asm/unistd_64.h, asm-generic/unistd.h).
_DENIED: dict[str, tuple[int, int]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "init_module": (175, 105),
    "io_uring_setup": (425, 425),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "ptrace": (101, 117),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setns": (308, 268),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
_SOCKET = (41, 198)
_AF_VSOCK = 40  # sockets between virtual machines and their host, which no network namespace isolates
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_CLONE_NEWUSER = 0x10000000
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH_*
_X32_BIT = 0x40000000
# By machine: each architecture whose calls it accepts, with the numbers of ptrace, process_vm_readv and
# process_vm_writev.  A 32-bit or x32 program must not bypass the filter.
_TRACING_CALLS: dict[str, tuple[tuple[int, int, tuple[int, int]], ...]] = {
    "x86_64": (
        (0xC000003E, 101, (310, 311)),
        (0xC000003E, _X32_BIT | 521, (_X32_BIT | 539, _X32_BIT | 540)),
        (0x40000003, 26, (347, 348)),
    ),
    "aarch64": ((0xC00000B7, 117, (270, 271)), (0x40000028, 26, (376, 377))),
}
_TRACE_ME = 0  # the only ptrace request that ignores its pid
_REAPER = 1  # bubblewrap's own process inside the sandbox, which reaps all others
# PR_SET_SECCOMP without a filter fails with EFAULT on kernels that support it.
_SET_SECCOMP, _MODE_FILTER = 22, 2

_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_FIRST_ARGUMENT, _OFFSET_SECOND_ARGUMENT = 0, 4, 16, 24


def filter_program(machine: str | None = None) -> bytes | None:
    """The filter of level 2 for this kind of processor; None without numbers for it.

    Calls of other architectures fail too: their numbers have other meanings.
    """
    numbers_of_machine = _MACHINES.get(machine or os.uname().machine)
    if numbers_of_machine is None:
        return None
    column, architecture = numbers_of_machine
    denied = sorted(numbers[column] for numbers in _DENIED.values())
    program = [
        (_LOAD, 0, 0, _OFFSET_ARCH),
        (_JUMP_EQUAL, 1, 0, architecture),
        _fail(errno.EPERM),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
    ]
    if column == 0:
        program += [(_JUMP_ABOVE, 0, 1, _X32_BIT), _fail(errno.EPERM)]
    for number in denied:
        program += [(_JUMP_EQUAL, 0, 1, number), _fail(errno.EPERM)]
    # clone3 hides its flags behind a pointer; with ENOSYS the C library falls back to clone.
    program += [(_JUMP_EQUAL, 0, 1, _CLONE3[column]), _fail(errno.ENOSYS)]
    program += [
        (_JUMP_EQUAL, 0, 4, _SOCKET[column]),
        (_LOAD, 0, 0, _OFFSET_FIRST_ARGUMENT),
        (_JUMP_EQUAL, 0, 1, _AF_VSOCK),
        _fail(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    program += [
        (_JUMP_EQUAL, 0, 3, _CLONE[column]),
        (_LOAD, 0, 0, _OFFSET_FIRST_ARGUMENT),
        (_JUMP_ANY_BIT, 0, 1, _CLONE_NEWUSER),
        _fail(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return _packed(program)


def reaper_guard(machine: str | None = None) -> bytes | None:
    """The filter of level 1, which protects pid 1 from tracers; None without numbers for this processor.

    A tracer could stop pid 1 for ever, and nothing would notice the end of the run.  Debuggers and profilers of the
    run's own processes still work.
    """
    tracing_calls = _TRACING_CALLS.get(machine or os.uname().machine)
    if tracing_calls is None:
        return None
    program: list[tuple[int, int, int, int]] = []
    for architecture, ptrace, memory_calls in tracing_calls:
        rules = _refuse_pid(ptrace, _OFFSET_SECOND_ARGUMENT, unless_request=_TRACE_ME)
        for number in memory_calls:
            rules += _refuse_pid(number, _OFFSET_FIRST_ARGUMENT)
        program += [
            (_LOAD, 0, 0, _OFFSET_ARCH),
            (_JUMP_EQUAL, 0, len(rules) + 1, architecture),
            (_LOAD, 0, 0, _OFFSET_NUMBER),
            *rules,
        ]
    return _packed([*program, (_RETURN, 0, 0, _ALLOW)])


def _refuse_pid(
    number: int, offset_pid: int, unless_request: int | None = None
) -> list[tuple[int, int, int, int]]:
    """Refuse one call on the reaper's pid.  Expects the loaded call number, and keeps it for other calls.

    A pid is an int: the kernel, too, uses the lower half of the argument only.
    """
    request = (
        [(_LOAD, 0, 0, _OFFSET_FIRST_ARGUMENT), (_JUMP_EQUAL, 1, 0, unless_request)]
        if unless_request is not None
        else []
    )
    return [
        (_JUMP_EQUAL, 0, 4 + len(request), number),
        (_LOAD, 0, 0, offset_pid),
        (_JUMP_EQUAL, 0, 1 + len(request), _REAPER),
        *request,
        _fail(errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def works() -> bool:
    """Whether this kernel accepts filters; some containers refuse them."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_SECCOMP, _MODE_FILTER, None, 0, 0)
    return ctypes.get_errno() == errno.EFAULT


def _packed(program: Sequence[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _fail(number: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ERRNO | number)


def open_filter(level: int) -> int | None:
    """A descriptor of this level's filter for bubblewrap.

    None without a filter for this processor; at level 1 also if the kernel accepts no filters.
    """
    if level < 2 and not works():
        return None
    program = filter_program() if level > 1 else reaper_guard()
    if program is None:
        return None
    fd = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    os.write(fd, program)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
