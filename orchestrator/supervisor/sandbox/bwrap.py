"""Builds the sandbox of a run with bubblewrap.

Level 0: only a session of its own.  Level 1: bubblewrap, and a guard for its pid 1.  Level 2: also a control group, a
system-call filter, and Landlock if the kernel has it.
"""

import errno
import json
import os
import select
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from orchestrator.supervisor.linux import scopes
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.launch import Launch
from orchestrator.supervisor.sandbox import cgroup, image, interpreter, landlock, seccomp
from orchestrator.supervisor.sandbox.interpreter import walk_links

_OWN_NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts")
# A host name that cannot be resolved hangs torchrun's rendezvous for minutes.
_IDENTITY = ("--hostname", "localhost", "--cap-drop", "ALL", "--die-with-parent", "--new-session")
# Writable besides the job's folders: the sandbox's own memory and devices, and /proc.
_WRITABLE = ("/tmp", "/dev", "/proc")  # noqa: S108 -- the sandbox's own
# Settings of the kernel and its drivers: a job of root could write there, and bubblewrap's own check of /proc/sys
# covers the folder, not its files.
_KERNEL = ("/proc/sys", "/proc/driver", "/proc/fs", "/proc/acpi", "/proc/scsi")
# Files that only root can read, for servers that run Berth as root.
_PRIVATE = ("/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh")
_INFO_DEADLINE_S = 10.0  # bubblewrap needs about 5 ms, but far longer on a machine that swaps
ENDS_WITHIN_S = 60  # a trial takes 10 ms; on a machine that is busy or swaps, too slow is not refused
_ROOT_SOCKETS = ("/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock")


class Probe(NamedTuple):  # a dataclass would cost each supervisor 6 ms at its start
    """The highest sandbox level that works here, and what stopped the next one, in the words of who refused it."""

    level: int
    error: str = ""  # empty at the highest level
    bwrap: str | None = None  # path of the program; None if it is not installed


def detect() -> int:
    """The highest sandbox level that works on this machine."""
    return probe().level


def probe() -> Probe:
    """Find the highest level by starting a sandbox; takes about 20 ms."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return Probe(0, "bubblewrap (bwrap) is not installed")
    if error := _error_of(bwrap, None):
        return Probe(0, error, bwrap)
    filter_fd = seccomp.open_filter(2)
    if filter_fd is None:
        return Probe(1, f"there is no system-call filter for {os.uname().machine}", bwrap)
    try:
        if not cgroup.works() and not _groups_work_in_scope():
            return Probe(1, "this process may not divide its control group", bwrap)
        error = _error_of(bwrap, filter_fd)
    finally:
        os.close(filter_fd)
    return Probe(1 if error else 2, error, bwrap)


def _groups_work_in_scope() -> bool:
    """Whether a supervisor, which gets a scope of systemd, can make groups though this process cannot."""
    return scopes.works(f"berth-try-{os.getpid()}", [sys.executable, "-I", "-S", cgroup.__file__])


def _error_of(bwrap: str, filter_fd: int | None) -> str:
    """Start a sandbox; the last line of bubblewrap's error output, empty if it started."""
    import subprocess

    command = [bwrap, *_OWN_NAMESPACES, *_IDENTITY, *_filter(filter_fd)]
    command += [*_system(), "--", "/bin/true"]
    fds = () if filter_fd is None else (filter_fd,)
    try:
        trial = subprocess.run(command, capture_output=True, timeout=ENDS_WITHIN_S, check=False, pass_fds=fds)  # noqa: S603 -- a fixed command
    except subprocess.TimeoutExpired:
        return f"bubblewrap did not end within {ENDS_WITHIN_S} s"
    except OSError as error:
        return f"{bwrap} cannot be started: {error.strerror}"
    if trial.returncode == 0:
        return ""
    lines = trial.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"bubblewrap ended with exit code {trial.returncode}"


def open_filter(launch: Launch) -> int | None:
    """A descriptor of the system-call filter for this attempt's level; the caller closes it.

    Raises:
        OSError: level 2 on a processor without a filter.
    """
    filter_fd = seccomp.open_filter(launch.level)
    if filter_fd is None and launch.level > 1:
        raise OSError(errno.ENOSYS, f"there is no system-call filter for {os.uname().machine}")
    return filter_fd


def _system() -> list[str]:
    """Options that bind the machine read-only, with separate devices and processes."""
    return ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", *_kernel_settings()]


def _kernel_settings() -> list[str]:
    return [word for path in _KERNEL if Path(path).is_dir() for word in ("--ro-bind", path, path)]


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
    """The command that runs ``run`` in bubblewrap; it writes its init's pid to ``info_fd`` and waits for ``wait_fd``.

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
        *(_files(launch, folder) if launch.image is None else _files_of_image(launch, folder, launch.image)),
        *(word for node in launch.device_nodes for word in ("--dev-bind", str(node), str(node))),
        *([] if launch.image is None else image.sealed()),
        *("--chdir", str(launch.cwd), "--", *run),
    ]


def _files(launch: Launch, folder: AttemptFolder) -> list[str]:
    """The files of the machine, as a run sees them."""
    return [
        *_system(),
        *_in_memory(launch, Path("/dev/shm")),  # noqa: S108 -- the sandbox's own
        *_view(launch),
        *_writable(launch, folder),
    ]


def _files_of_image(launch: Launch, folder: AttemptFolder, root: Path) -> list[str]:
    """The files of an image, with the job's own folders, its data and Berth's training library at their usual places."""
    writable = [launch.work, launch.checkpoints, launch.output, *launch.writable]
    writable += [folder.logs, folder.finished, folder.errors, folder.metrics, folder.media]
    # Links of the host do not exist inside, so each place is mounted under both of its names.
    places = {name: path.resolve() for path in writable for name in (path, path.resolve())}
    loader = [word for name, value in launch.image_loader.items() for word in ("--setenv", name, value)]
    return [
        *image.options(root, _shown_in_image(launch) | places, places, _size(launch), _hidden(launch)),
        *_kernel_settings(),
        *loader,
    ]


def _shown_in_image(launch: Launch) -> dict[Path, Path]:
    """What a run in an image may read of the host, by where it appears."""
    read_only = [*launch.read_only, launch.entry.parent]
    shown = {name: path.resolve() for path in read_only for name in (path, path.resolve())}
    return shown | {place: path.resolve() for path, place in launch.image_files}


def in_image(
    root: Path,
    environment: Mapping[str, str],
    run: Sequence[str],
    *,
    memory_bytes: int,
    info_fd: int,
    wait_fd: int,
    filter_fd: int | None = None,
) -> list[str]:
    """The command that runs a program of an image alone: without a network, and with nothing to write to but memory.

    Args:
        memory_bytes: what each folder in main memory may take.

    Raises:
        FileNotFoundError: bubblewrap is not installed.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise FileNotFoundError("bubblewrap (bwrap) is not installed")
    variables = [word for name, value in environment.items() for word in ("--setenv", name, value)]
    return [
        *(program, *_OWN_NAMESPACES, "--unshare-net", *_IDENTITY),
        *("--info-fd", str(info_fd), "--block-fd", str(wait_fd), *_filter(filter_fd)),
        *image.options(root, {}, (), ("--size", str(memory_bytes))),
        *_kernel_settings(),
        *("--remount-ro", "/dev", *image.sealed()),
        *("--clearenv", *variables, "--chdir", "/", "--", *run),
    ]


def read_init(info: int) -> int | None:
    """The pid of a sandbox's init as bubblewrap reports it; reads to the end, so that it never writes to a closed pipe."""
    data, deadline_s = b"", time.monotonic() + _INFO_DEADLINE_S
    while select.select([info], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
        chunk = os.read(info, 4096)
        if not chunk:
            break
        data += chunk
    try:
        return int(json.loads(data)["child-pid"])
    except (ValueError, KeyError, TypeError):
        return None  # bubblewrap failed; its output says why


def confined(launch: Launch, folder: AttemptFolder, run: Sequence[str]) -> list[str]:
    """``run``, restricted by Landlock first if level and kernel have it."""
    if not uses_landlock(launch):
        return list(run)
    writable = writable_places(launch, folder)
    confine = [str(launch.python), "-I", "-S", landlock.__file__, str(len(writable)), *writable]
    return [*confine, *run]


def writable_places(launch: Launch, folder: AttemptFolder) -> list[str]:
    """Everything that the run may write to, as Landlock takes it."""
    return [*(str(path) for path in _writable_paths(launch, folder)), *_WRITABLE]


def uses_landlock(launch: Launch) -> bool:
    """Whether Landlock holds the run too.  An image need not have the Python that applies it from inside."""
    return launch.level > 1 and launch.image is None and landlock.version() > 0


def _view(launch: Launch) -> list[str]:
    """Hide Berth's state and files of others, then expose what the run needs.

    Parents come before their contents: a dataset above the home must not expose it, and a virtual environment below
    a hidden folder must stay visible.
    """
    hidden = _hidden(launch)
    links, unhidden = _exposed(launch, hidden)
    read_only = [path.resolve() for path in launch.read_only] + unhidden
    steps = [(path, 1, _hide(launch, path)) for path in hidden]
    steps += [(path, 0, ["--ro-bind", str(path), str(path)]) for path in read_only]
    steps += [(path, 0, ["--symlink", target, str(path)]) for path, target in links.items()]
    steps.sort(key=lambda step: (len(step[0].parts), step[1]))
    return [word for _, _, words in steps for word in words]


def _exposed(launch: Launch, hidden: Sequence[Path]) -> tuple[dict[Path, str], list[Path]]:
    """The links, and the resolved files and folders, that the run needs below hidden folders."""
    links: dict[Path, str] = {}
    places: dict[Path, None] = {}
    for path in [launch.python, *needed(launch)]:
        *traversed, (place, _) = walk_links(path)
        links |= dict(traversed)
        if path != launch.python:  # the interpreter itself is in one of the folders
            places[place] = None
    exposed = [path for path in places if path.exists() and _is_below(path, hidden)]
    links = {
        path: target
        for path, target in links.items()
        if _is_below(path, hidden) and not _is_below(path, exposed)
    }
    return links, exposed


def _is_below(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _hide(launch: Launch, path: Path) -> list[str]:
    return _in_memory(launch, path) if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]


def memory_folders(launch: Launch) -> list[str]:
    """The sandbox's folders in main memory."""
    if launch.image is not None:
        covered = image.covered(_shown_in_image(launch), (), _hidden(launch))
        return [*image.memory_folders(), *(str(place) for place, path in covered.items() if path.is_dir())]
    hidden = [str(path) for path in _hidden(launch) if path.is_dir()]
    return ["/dev", "/dev/shm", *hidden]  # noqa: S108 -- the sandbox's own


def files_bytes(folders: Sequence[str], init_pid: int) -> int:
    """Memory of the files in these folders of a sandbox, with each page counted once.

    Skips folders of the host, which are visible while bubblewrap sets up the sandbox.
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
    """Options for an empty folder in main memory, limited to the memory that the run may use."""
    return [*_size(launch), "--tmpfs", str(path)]


def _size(launch: Launch) -> list[str]:
    return [] if launch.memory_bytes is None else ["--size", str(launch.memory_bytes)]


def _hidden(launch: Launch) -> list[Path]:
    """Paths to hide.  The user's home goes as a whole: nobody can list all names of keys and tokens."""
    user = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 -- unlike Path.home it never fails
    paths = [launch.home, Path("/tmp"), Path(f"/run/user/{os.getuid()}")]  # noqa: S108 -- hidden, not used
    if not Path("/usr").is_relative_to(user):  # the home of system users may be /
        paths.append(user)
    paths += [Path(name) for name in (*_PRIVATE, *_ROOT_SOCKETS)]
    return list(dict.fromkeys(path.resolve() for path in paths if path.exists()))


def needed(launch: Launch) -> list[Path]:
    """Folders of the interpreter, its packages and the rank entry; links may lead there."""
    hidden = _hidden(launch)
    pythons = [*interpreter.roots(launch.python), *launch.python_roots]
    folders = [part for root in pythons for part in interpreter.narrow(root, hidden)]
    return list(dict.fromkeys([*folders, launch.entry.parent.parent]))


def try_interpreter(launch: Launch) -> str | None:
    """Start the interpreter in a run's sandbox; returns the last line of its error output if it fails, else None.

    Raises:
        OSError: the interpreter or bubblewrap cannot be executed.
        subprocess.TimeoutExpired: the interpreter did not end within a minute.
    """
    import subprocess

    command = [str(launch.python), "-I", "-c", ""]
    if launch.level:
        bwrap = shutil.which("bwrap") or "bwrap"
        command = [bwrap, *_OWN_NAMESPACES, *_IDENTITY, *_system(), *_view(launch), "--", *command]
    trial = subprocess.run(  # noqa: S603 -- the command of a run
        command, capture_output=True, timeout=60, check=False, cwd="/", env={"LANG": "C.UTF-8"}
    )
    if trial.returncode == 0:
        return None
    lines = trial.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {trial.returncode}"


def tool(launch: Launch, run: Sequence[str], writable: Sequence[Path]) -> list[str]:
    """The command that runs a tool of Berth's own in the sandbox of a run, with the network and these folders.

    The tool dies with the thread that starts it.

    Raises:
        FileNotFoundError: bubblewrap is not installed.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise FileNotFoundError("bubblewrap (bwrap) is not installed")
    folders = [path.resolve() for path in writable]
    binds = [word for path in folders for word in ("--bind-try", str(path), str(path))]
    return [
        *(program, *_OWN_NAMESPACES, *_IDENTITY, *_system(), *_view(launch), *binds),
        *("--chdir", str(launch.work), "--", *run),
    ]


def _writable(launch: Launch, folder: AttemptFolder) -> list[str]:
    return [word for path in _writable_paths(launch, folder) for word in ("--bind", str(path), str(path))]


def _writable_paths(launch: Launch, folder: AttemptFolder) -> list[Path]:
    paths = [launch.work, launch.checkpoints, launch.output]
    paths += [folder.logs, folder.finished, folder.errors, folder.metrics, folder.media, *launch.writable]
    return [path.resolve() for path in paths]
