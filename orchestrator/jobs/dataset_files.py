"""The files of datasets: their size and checksum, and which of them no job may read."""

import errno
import functools
import hashlib
import os
import pwd
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.exceptions import Impossible, Sentence
from orchestrator.store.files.file_systems import network_trap
from orchestrator.store.files.untrusted import walk_tree

HASHED_BYTES = 64 * 1024**2  # above this the caller would wait too long for the checksum
COUNTED_FILES = 10_000
_CHUNK_BYTES = 1024**2
# By their names in /proc/self/mountinfo (proc(5)): file systems whose files are the kernel's answers, not data.
KERNEL_TYPES = frozenset(
    [
        "proc",
        "sysfs",
        "cgroup",
        "cgroup2",
        "cpuset",
        "resctrl",
        "devtmpfs",
        "devpts",
        "mqueue",
        "binfmt_misc",
        "nsfs",
        "sockfs",
        "pipefs",
        "debugfs",
        "tracefs",
        "securityfs",
        "selinuxfs",
        "smackfs",
        "configfs",
        "bpf",
        "pstore",
        "efivarfs",
        "fusectl",
        "rpc_pipefs",
        "nfsd",
        "xenfs",
        "ocfs2_dlmfs",
    ]
)
_MOUNTS = Path("/proc/self/mountinfo")


def measure(path: Path) -> tuple[int | None, str]:
    """Size and SHA-256 of a file or folder.

    A folder's checksum covers the paths and contents of its regular files. Beyond ``COUNTED_FILES`` files
    the size is None; beyond ``HASHED_BYTES`` bytes the checksum is empty. Links are not followed.

    Raises:
        OSError: a file or folder cannot be read; the error names it.
        Impossible: a file system of the kernel is mounted in the folder.
    """
    files = []
    size = 0
    for relative, file_size in _walk(path):
        files.append(relative)
        size += file_size
        if len(files) > COUNTED_FILES:
            return None, ""
    if size > HASHED_BYTES:
        return size, ""
    return size, _sha256_file(path) if path.is_file() else _sha256_folder(path, sorted(files))


def _walk(path: Path) -> Iterator[tuple[str, int]]:
    if path.is_file():
        _refuse_unreadable(path, os.R_OK)
        yield path.name, path.stat().st_size
        return
    for folder, folders, names in walk_tree(path):
        for name in names:
            file = Path(folder, name)
            entry = file.lstat()
            if stat.S_ISREG(entry.st_mode):
                _refuse_unreadable(file, os.R_OK)
                yield str(file.relative_to(path)), entry.st_size
        for name in folders:
            inner = Path(folder, name)
            _refuse_unreadable(inner, os.R_OK | os.X_OK)
            refuse_kernel_files(inner, inner.lstat())


def _refuse_unreadable(path: Path, wanted: int) -> None:
    """Refuse unreadable files now: large data is not hashed, so only a job would notice later."""
    if not os.access(path, wanted, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def _sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _sha256_folder(path: Path, files: list[str]) -> str:
    listing = "".join(f"{_sha256_file(path / file)} {file!r}\n" for file in files)
    return hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()


@contextmanager
def refusals_told() -> Iterator[None]:
    """Turn errors of the system into a message for the field ``path``, with the file's name."""
    try:
        yield
    except OSError as error:
        name = os.fsencode(error.filename or "a file").decode(errors="replace")
        refusal = why_unreadable(Path(error.filename)) if error.filename else None
        raise unusable(
            refusal or f"{name} cannot be read ({error.strerror}); try again when it can."
        ) from error


def why_unreadable(path: Path) -> str | None:
    """Explain which permission keeps Berth from a path, and what helps; None if it is another reason.

    A folder may be open to everybody and still be out of reach, because one above it is not.
    """
    place = next(
        (each for each in (*reversed(path.parents), path) if not _lets_in(each, is_last=each == path)), None
    )
    if place is None:
        return None
    server = _user_name(os.geteuid())
    try:
        about = place.stat()
    except OSError:  # gone, or changed just now
        return None
    mode, owner = stat.S_IMODE(about.st_mode), _user_name(about.st_uid)
    who = "g" if about.st_gid in {os.getegid(), *os.getgroups()} else "o"
    where = "it" if place == path else _text(place)
    help_ = f"chmod {who}+{'rX' if place == path else 'x'} {_text(place)}"
    return (
        f"This server's user ({server}) cannot read {_text(path)}: {where} is {owner}'s with mode {mode:04o}. "
        f"Ask {owner} to let {server} in ({help_}), or copy the data to the server: berth data push NAME {_text(path)}"
        f"{network_trap(place)}"
    )


def _lets_in(path: Path, *, is_last: bool) -> bool:
    """Whether we may read the last part of a path, or go through one before it."""
    wanted = os.X_OK if not is_last else os.R_OK | (os.X_OK if path.is_dir() else 0)
    return not os.path.lexists(path) or os.access(path, wanted, effective_ids=True)


def _text(path: Path) -> str:
    return os.fsencode(path).decode(errors="replace")


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # of a container, or of another machine
        return f"user {number}"


def refuse_kernel_files(path: Path, status: os.stat_result) -> None:
    if kind := kernel_devices().get(status.st_dev):
        raise unusable(
            Sentence(
                "{path} lies on a file system of the kernel ({kind}), which holds no data and tells of other people's processes; choose another folder.",
                path=path,
                kind=kind,
            )
        )


def kernel_devices() -> dict[int, str]:
    """Map device numbers to types of mounted file systems of the kernel, such as ``/proc``.

    Links and bind mounts hide a path, but not this number.
    """
    return _read_mounts(int(time.monotonic()))


@functools.lru_cache(maxsize=1)
def _read_mounts(_second: int) -> dict[int, str]:
    """Read the mounts at most once a second: each dataset of a list asks, and a host may have thousands of mounts."""
    types = {}
    for line in _MOUNTS.read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        kind = after.split(" ", 1)[0]
        if kind in KERNEL_TYPES:
            major, _, minor = before.split(" ")[2].partition(":")
            types[os.makedev(int(major), int(minor))] = kind
    return types


def unusable(sentence: str) -> Impossible:
    return Impossible(sentence, fields={"path": [sentence]})
