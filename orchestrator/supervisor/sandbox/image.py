"""A container image as the root of a sandbox: options for bubblewrap that lay its files out, read-only.

The image is a folder of the host. Places that a run needs may lie below folders of the image, so a folder above one of
them is made anew in memory and the image's files are bound into it one by one; all others are bound as a whole.
"""

import errno
import os
import posixpath
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

# The sandbox's own, where programs expect to write.
_IN_MEMORY = ("/dev/shm", "/tmp", "/run", "/var/tmp")  # noqa: S108
_KERNELS = ("/dev", "/proc", "/sys")
# Who the user of the run is, and how names of hosts are found: as on the host.
_OF_THE_HOST = ("/etc/passwd", "/etc/group", "/etc/resolv.conf", "/etc/hosts")
_MOST_LINKS = 40  # as the kernel has it


def memory_folders() -> list[str]:
    """The folders in main memory of a sandbox with an image."""
    return ["/dev", *_IN_MEMORY]


def options(
    root: Path,
    shown: Mapping[Path, Path],
    writable: Collection[Path],
    size: Sequence[str],
    hidden: Sequence[Path] = (),
) -> list[str]:
    """Options that make an image the root, with places of the host in it.

    Args:
        shown: places of the host by where they appear; read-only unless they are in ``writable``.
        size: options that limit each folder in main memory.
        hidden: paths of the host that stay out of sight in what is shown.
    """
    binds = {Path(path): Path(os.path.realpath(path)) for path in _OF_THE_HOST if Path(path).exists()}
    binds |= shown
    memory = [Path(path) for path in _IN_MEMORY]
    kernels = [Path(path) for path in _KERNELS]
    mounted = {*binds, *memory, *kernels}
    opened = {parent for place in mounted for parent in place.parents}
    words = [*_lay(str(root), Path("/"), mounted, opened)]
    words += ["--dev", "/dev", "--proc", "/proc", "--ro-bind", "/sys", "/sys"]
    words += [word for path in memory for word in (*size, "--tmpfs", str(path))]
    steps = [
        (place, 0, ["--bind" if place in writable else "--ro-bind", str(source), str(place)])
        for place, source in binds.items()
    ]
    steps += [
        (place, 1, _cover(path, place, size)) for place, path in covered(shown, writable, hidden).items()
    ]
    # What the run has below a hidden folder is bound after it.
    steps.sort(key=lambda step: (len(step[0].parts), step[1], step[0]))
    return [*words, *(word for _, _, step in steps for word in step)]


def covered(
    shown: Mapping[Path, Path], writable: Collection[Path], hidden: Sequence[Path]
) -> dict[Path, Path]:
    """Where paths of the host appear that are to be hidden, with those paths; arguments as of ``options``."""
    found = {
        place / path.relative_to(source): path
        for place, source in shown.items()
        if place not in writable
        for path in hidden
        if path.is_relative_to(source)
    }
    return {place: path for place, path in found.items() if place not in writable}


def _cover(path: Path, place: Path, size: Sequence[str]) -> list[str]:
    return [*size, "--tmpfs", str(place)] if path.is_dir() else ["--ro-bind", "/dev/null", str(place)]


def sealed() -> list[str]:
    """Options that come last: nothing can be written where only our own folders are."""
    return ["--remount-ro", "/"]


def _lay(root: str, folder: Path, mounted: Collection[Path], opened: Collection[Path]) -> Iterator[str]:
    with os.scandir(f"{root}{folder}") as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        place = folder / entry.name
        if place in mounted:
            continue
        if place in opened:
            yield from ("--dir", str(place))
            if entry.is_dir(follow_symlinks=False):
                yield from _lay(root, place, mounted, opened)
        elif entry.is_symlink():
            yield from ("--symlink", str(Path(entry.path).readlink()), str(place))
        else:
            yield from ("--ro-bind", entry.path, str(place))


def resolve(root: Path, path: str) -> Path:
    """Where a path of the image lies on the host; links are followed inside of the image, and never lead out of it.

    The last part need not be there.

    Raises:
        OSError: links form a circle.
    """
    place, pending, links = root, list(reversed(path.split("/"))), 0
    while pending:
        name = pending.pop()
        if name in ("", "."):
            continue
        if name == "..":
            place = place.parent if place != root else root
            continue
        step = place / name
        try:
            is_link = stat.S_ISLNK(step.lstat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            is_link = False
        if not is_link:
            place = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = str(step.readlink())
        place = root if target.startswith("/") else place
        pending += reversed(target.split("/"))
    return place


def find_program(root: Path, name: str, path: str) -> str | None:
    """The path inside of the image of a program that is named without a folder; None if none of ``path`` has it."""
    for folder in path.split(":"):
        if not folder.startswith("/"):
            continue
        inside = posixpath.join(folder, name)
        if is_program(root, inside):
            return inside
    return None


def is_program(root: Path, path: str) -> bool:
    """Whether the image has a file at this path that can be executed."""
    try:
        mode = resolve(root, path).lstat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o111)
