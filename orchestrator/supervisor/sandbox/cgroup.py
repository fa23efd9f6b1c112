"""Control groups (version 2 or 1): limits of an attempt that the kernel enforces.

Only the memory and pids controllers are required.  See the kernel's admin guide, "Control Group v2".
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_NEEDED = ("memory", "pids")
_OPTIONAL = "cpu"
_PREFIX = "berth-"
_SERVICES = "berth-services"  # for Berth's own processes: a group with children may not contain processes
_SHARES_OF_ONE_CPU = 1024  # version 1's default
_WEIGHT_OF_ONE_CPU = 100  # version 2's default


class Group:
    """The control group of one attempt; processes join it before they start anything."""

    def __init__(self, folders: dict[str, Path], version: int) -> None:
        self.version = version
        self._folders = folders  # by controller; version 2 has one folder for all

    @property
    def join_files(self) -> list[Path]:
        """Files in which a process writes its pid, or 0 for itself, to join."""
        return [folder / "cgroup.procs" for folder in dict.fromkeys(self._folders.values())]

    def limit(self, *, memory_bytes: int | None, pids: int | None, cpus: int | None) -> None:
        """Set the limits; None means no limit."""
        memory, processes = self._folders["memory"], self._folders["pids"]
        if pids is not None:
            (processes / "pids.max").write_text(str(pids))
        if memory_bytes is not None and self.version == 2:
            (memory / "memory.max").write_text(str(memory_bytes))
            with suppress(OSError):  # without swap accounting
                (memory / "memory.swap.max").write_text("0")
            with suppress(OSError):
                (memory / "memory.oom.group").write_text(
                    "1"
                )  # a training is useless without one of its ranks
        elif memory_bytes is not None:
            (memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
            with suppress(OSError):
                (memory / "memory.memsw.limit_in_bytes").write_text(str(memory_bytes))
        if cpus is not None and _OPTIONAL in self._folders:
            name, one = (
                ("cpu.weight", _WEIGHT_OF_ONE_CPU)
                if self.version == 2
                else ("cpu.shares", _SHARES_OF_ONE_CPU)
            )
            (self._folders[_OPTIONAL] / name).write_text(str(min(10_000, one * cpus)))

    def memory_bytes(self) -> int | None:
        """Memory of the run, without the file cache that the kernel can reclaim."""
        memory = self._folders["memory"]
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        used = _read_number(memory / name)
        cache = _read_table(memory / "memory.stat")
        reclaimable = cache.get("inactive_file", cache.get("total_inactive_file", 0))
        return None if used is None else max(0, used - reclaimable)

    def oom_kills(self) -> int | None:
        """Number of processes that the kernel killed for lack of memory, of the group or of the machine.

        None if the kernel does not count them.
        """
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return _read_table(self._folders["memory"] / name).get("oom_kill")

    def refused_forks(self) -> int:
        """How often the limit prevented a new process or thread."""
        return _read_table(self._folders["pids"] / "pids.events").get("max", 0)

    def pids(self) -> list[int]:
        pids: set[int] = set()
        for path in self.join_files:
            with suppress(OSError, ValueError):
                pids.update(int(line) for line in path.read_text().split())
        return sorted(pids)

    def kill(self) -> bool:
        """SIGKILL all processes at once, even a fork bomb; False on version 1, which cannot."""
        try:
            (self._folders["memory"] / "cgroup.kill").write_text("1")
        except OSError:
            return False
        return True

    def remove(self) -> None:
        """Remove the group, unless it still has processes."""
        for folder in dict.fromkeys(self._folders.values()):
            with suppress(OSError):
                folder.rmdir()


def create(name: str) -> Group | None:
    """Create a group for an attempt; None if this process may not."""
    places = _places()
    if places is None:
        return None
    parents, version = places
    folders = {controller: parent / f"{_PREFIX}{name}" for controller, parent in parents.items()}
    try:
        for folder in dict.fromkeys(folders.values()):
            folder.mkdir(exist_ok=True)
    except OSError:
        Group(folders, version).remove()
        return None
    return Group(folders, version)


def find(name: str) -> Group | None:
    """The group of an attempt whose supervisor is gone; None without one."""
    places = _places()
    if places is None:
        return None
    parents, version = places
    folders = {controller: parent / f"{_PREFIX}{name}" for controller, parent in parents.items()}
    return Group(folders, version) if all(folder.is_dir() for folder in folders.values()) else None


def own_oom_kills() -> int | None:
    """How many processes of this process's own group the kernel killed for lack of memory.

    Kills in groups below it are not counted.  None if the kernel does not count them, as in the root of version 2.
    """
    own = _own_groups()
    for controller, name in (("", "memory.events.local"), ("memory", "memory.oom_control")):
        if controller in own:
            folder = _ROOT / controller / own[controller].lstrip("/")
            if (kills := _read_table(folder / name).get("oom_kill")) is not None:
                return kills
    return None


def works() -> bool:
    """Whether a group with limits can be created here, by creating one."""
    group = create(f"try-{os.getpid()}")
    if group is None:
        return False
    try:
        group.limit(memory_bytes=1 << 30, pids=16, cpus=None)
    except OSError:
        return False
    finally:
        group.remove()
    return True


def _places() -> tuple[dict[str, Path], int] | None:
    """The folder for new groups by controller, and the version; None if we may not create groups."""
    own = _own_groups()
    if "" in own and (parent := _unified(own[""])) is not None:
        names = _read_words(parent / "cgroup.subtree_control")
        return {name: parent for name in (*_NEEDED, _OPTIONAL) if name in names}, 2
    parents = {name: _ROOT / name / own[name].lstrip("/") for name in (*_NEEDED, _OPTIONAL) if name in own}
    parents = {name: path for name, path in parents.items() if os.access(path, os.W_OK)}
    return (parents, 1) if all(name in parents for name in _NEEDED) else None


def _own_groups() -> dict[str, str]:
    """This process's groups by controller; version 2 has an empty name."""
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _unified(path: str) -> Path | None:
    """Prepare and return the folder below which version 2 allows groups with limits; None if it does not."""
    folder = _ROOT / path.lstrip("/")
    if folder.name == _SERVICES:
        folder = folder.parent
    if not set(_NEEDED) <= _read_words(folder / "cgroup.controllers") or not os.access(folder, os.W_OK):
        return None
    if set(_NEEDED) <= _read_words(folder / "cgroup.subtree_control"):
        return folder
    try:
        _move_services(folder)
        controllers = [
            name for name in (*_NEEDED, _OPTIONAL) if name in _read_words(folder / "cgroup.controllers")
        ]
        (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
    except OSError:
        return None
    return folder


def _move_services(folder: Path) -> None:
    """Move Berth's processes to a child group: limits for children need a delegated group without processes."""
    services = folder / _SERVICES
    services.mkdir(exist_ok=True)
    for pid in (folder / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):
            (services / "cgroup.procs").write_text(pid)


def _read_words(path: Path) -> set[str]:
    try:
        return set(path.read_text().split())
    except OSError:
        return set()


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _read_table(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    try:
        lines: Iterable[str] = path.read_text().splitlines()
    except OSError:
        return {}
    rows = (line.split() for line in lines)
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


if __name__ == "__main__":  # as a program of its own: whether groups can be made where it was started
    raise SystemExit(0 if works() else 1)
