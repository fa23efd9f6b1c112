"""The walls around a run.

Level 0: a session of its own.  Level 1: bubblewrap, and a guard of its pid 1.  Level 2: also a control group, a
system-call filter, and Landlock where the kernel has it.
"""

import errno
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from orchestrator.supervisor import cgroup, interpreter, landlock, seccomp
from orchestrator.supervisor.folder import AttemptFolder
from orchestrator.supervisor.interpreter import walk_links
from orchestrator.supervisor.launch import Launch

_OWN_NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts")
# A host name that cannot be resolved hangs torchrun's rendezvous for minutes.
_IDENTITY = ("--hostname", "localhost", "--cap-drop", "ALL", "--die-with-parent", "--new-session")
_CONFINE = Path(__file__).with_name("confine.py")
# Besides the job's folders: the sandbox's own memory and devices, and what a process may tell the kernel of itself.
_WRITABLE = ("/tmp", "/dev", "/proc")  # noqa: S108 -- the sandbox's own
# Settings of the whole kernel and its drivers: a job of root's could write there, and bubblewrap's own check of
# /proc/sys looks at the folder, not at the files.
_KERNEL = ("/proc/sys", "/proc/driver", "/proc/fs", "/proc/acpi", "/proc/scsi")
# What only root can read, for who runs Berth as root all the same.
_PRIVATE = ("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh")
_ROOT_SOCKETS = ("/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock")


def detect() -> int:
    """The highest sandbox level that works on this machine, found by starting one; takes about 20 ms."""
    bwrap = shutil.which("bwrap")
    if bwrap is None or not _starts(bwrap, None):
        return 0
    filter_fd = seccomp.open_filter(2)
    if filter_fd is None:
        return 1
    try:
        return 2 if cgroup.works() and _starts(bwrap, filter_fd) else 1
    finally:
        os.close(filter_fd)


def _starts(bwrap: str, filter_fd: int | None) -> bool:
    import subprocess

    command = [bwrap, *_OWN_NAMESPACES, *_IDENTITY, *_filter(filter_fd)]
    command += [*_system(), "--", "/bin/true"]
    fds = () if filter_fd is None else (filter_fd,)
    try:
        tried = subprocess.run(command, capture_output=True, timeout=10, check=False, pass_fds=fds)  # noqa: S603 -- a fixed command
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


def open_filter(launch: Launch) -> int | None:
    """The system-call filter that this attempt's level asks for; the caller closes it.

    Raises:
        OSError: level 2 on a processor that there is no filter for.
    """
    filter_fd = seccomp.open_filter(launch.level)
    if filter_fd is None and launch.level > 1:
        raise OSError(errno.ENOSYS, f"there is no system-call filter for {os.uname().machine}")
    return filter_fd


def _system() -> list[str]:
    """The machine read-only, with devices and processes of its own."""
    kernel = [word for path in _KERNEL if Path(path).is_dir() for word in ("--ro-bind", path, path)]
    return ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", *kernel]


def _filter(fd: int | None) -> list[str]:
    return [] if fd is None else ["--seccomp", str(fd)]


def command(
    launch: Launch,
    folder: AttemptFolder,
    run: Sequence[str],
    *,
    info_fd: int,
    wait_fd: int,
    filter_fd: int | None = None,
) -> list[str]:
    """``run`` inside bubblewrap, which tells ``info_fd`` the pid of the sandbox's init, and then reads ``wait_fd``.

    Raises:
        FileNotFoundError: bubblewrap is not installed.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise FileNotFoundError("bubblewrap (bwrap) is not installed, but the job asks for sandbox level 1")
    network = ["--unshare-net"] if launch.own_network else []
    return [
        *(bwrap, *_OWN_NAMESPACES, *network, *_IDENTITY, "--info-fd", str(info_fd)),
        *("--block-fd", str(wait_fd)),
        *_filter(filter_fd),
        *_system(),
        *_in_memory(launch, Path("/dev/shm")),  # noqa: S108 -- the sandbox's own
        *_view(launch),
        *_writable(launch, folder),
        *(word for node in launch.device_nodes for word in ("--dev-bind", str(node), str(node))),
        *("--chdir", str(launch.work), "--", *run),
    ]


def confined(launch: Launch, folder: AttemptFolder, run: Sequence[str]) -> list[str]:
    """``run``, which first gives up writing anywhere else, where level 2 and the kernel have Landlock."""
    if not uses_landlock(launch):
        return list(run)
    writable = [*(str(path) for path in _written(launch, folder)), *_WRITABLE]
    confine = [str(launch.python), "-I", "-S", str(_CONFINE), str(len(writable)), *writable]
    return [*confine, *run]


def uses_landlock(launch: Launch) -> bool:
    return launch.level > 1 and landlock.version() > 0


def _view(launch: Launch) -> list[str]:
    """Hide Berth's state and others' files, then show again what the run needs.

    Parents come before what lies in them, whichever it is: a data set above the home must not uncover it,
    and a virtual environment below a hidden folder must stay visible.
    """
    hidden = _hidden(launch)
    links, unhidden = _shown(launch, hidden)
    shown = [path.resolve() for path in launch.read_only] + unhidden
    steps = [(path, 1, _hide(launch, path)) for path in hidden]
    steps += [(path, 0, ["--ro-bind", str(path), str(path)]) for path in shown]
    steps += [(path, 0, ["--symlink", target, str(path)]) for path, target in links.items()]
    steps.sort(key=lambda step: (len(step[0].parts), step[1]))
    return [word for _, _, words in steps for word in words]


def _shown(launch: Launch, hidden: Sequence[Path]) -> tuple[dict[Path, str], list[Path]]:
    """Links, and files and folders without links on their way, that the run needs and that lie in hidden folders."""
    links: dict[Path, str] = {}
    places: dict[Path, None] = {}
    for path in [launch.python, *needed(launch)]:
        *on_the_way, (place, _) = walk_links(path)
        links |= dict(on_the_way)
        if path != launch.python:  # it is in one of the folders
            places[place] = None
    shown = [path for path in places if path.exists() and _is_below(path, hidden)]
    links = {
        path: target
        for path, target in links.items()
        if _is_below(path, hidden) and not _is_below(path, shown)
    }
    return links, shown


def _is_below(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _hide(launch: Launch, path: Path) -> list[str]:
    return _in_memory(launch, path) if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]


def memory_folders(launch: Launch) -> list[str]:
    """Where the sandbox has folders in main memory."""
    hidden = [str(path) for path in _hidden(launch) if path.is_dir()]
    return ["/dev", "/dev/shm", *hidden]  # noqa: S108 -- the sandbox's own


def files_bytes(folders: Sequence[str], init_pid: int) -> int:
    """What the files in these folders of a sandbox take; each page is counted once.

    While bubblewrap still sets the sandbox up, folders of the host are seen: those are left out.
    """
    total = 0
    for folder in folders:
        try:
            inside = os.stat(f"/proc/{init_pid}/root{folder}")  # noqa: PTH116 -- four times a second
            if inside.st_dev == os.stat(folder).st_dev:  # noqa: PTH116 -- as above
                continue
            disk = os.statvfs(f"/proc/{init_pid}/root{folder}")
        except OSError:
            continue
        total += (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    return total


def _in_memory(launch: Launch, path: Path) -> list[str]:
    """An empty folder in main memory, no larger than the memory that the run may use."""
    size = [] if launch.memory_bytes is None else ["--size", str(launch.memory_bytes)]
    return [*size, "--tmpfs", str(path)]


def _hidden(launch: Launch) -> list[Path]:
    """The user's home as a whole: keys and tokens lie in it under more names than anybody can list."""
    user = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 -- unlike Path.home it never fails
    paths = [launch.home, Path("/tmp"), Path(f"/run/user/{os.getuid()}")]  # noqa: S108 -- hidden, not used
    if not Path("/usr").is_relative_to(user):  # the home of system users may be /
        paths.append(user)
    paths += [Path(name) for name in (*_PRIVATE, *_ROOT_SOCKETS)]
    return list(dict.fromkeys(path.resolve() for path in paths if path.exists()))


def needed(launch: Launch) -> list[Path]:
    """Where the interpreter, its packages and the rank entry are; links may lead there."""
    hidden = _hidden(launch)
    pythons = [*interpreter.roots(launch.python), *launch.python_roots]
    found = [part for root in pythons for part in interpreter.narrow(root, hidden)]
    return list(dict.fromkeys([*found, launch.entry.parent.parent]))


def try_interpreter(launch: Launch) -> str | None:
    """Start the interpreter as a run would find it; its last words where it does not start.

    Raises:
        OSError: it, or bubblewrap, cannot be executed at all.
        subprocess.TimeoutExpired: it did not end within a minute.
    """
    import subprocess

    command = [str(launch.python), "-I", "-c", ""]
    if launch.level:
        bwrap = shutil.which("bwrap") or "bwrap"
        command = [bwrap, *_OWN_NAMESPACES, *_IDENTITY, *_system(), *_view(launch), "--", *command]
    tried = subprocess.run(  # noqa: S603 -- the command of a run
        command, capture_output=True, timeout=60, check=False, cwd="/", env={"LANG": "C.UTF-8"}
    )
    if tried.returncode == 0:
        return None
    words = tried.stderr.decode(errors="replace").strip().splitlines()
    return words[-1] if words else f"exit code {tried.returncode}"


def _writable(launch: Launch, folder: AttemptFolder) -> list[str]:
    return [word for path in _written(launch, folder) for word in ("--bind", str(path), str(path))]


def _written(launch: Launch, folder: AttemptFolder) -> list[Path]:
    paths = [launch.work, launch.checkpoints, launch.output]
    paths += [folder.logs, folder.finished, folder.errors, folder.metrics]
    return [path.resolve() for path in paths]
