"""The processes of one attempt: starts them, finds its ranks, and ends them all."""

import errno
import os
import signal
import time

from orchestrator.supervisor.linux.processes import (
    ProcessId,
    children,
    descendants,
    environ,
    identify,
    identify_dead,
    is_alive,
    rank_of,
    send_signal,
)
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.launch import Launch
from orchestrator.supervisor.protocol.records import write_record
from orchestrator.supervisor.ranks.child import hold_processes, start_child
from orchestrator.supervisor.ranks.command import run_command
from orchestrator.supervisor.ranks.leaders import leaders
from orchestrator.supervisor.sandbox import bwrap, cgroup

UNDYING_AFTER_S = 5.0  # the kernel needs seconds to free hundreds of gigabytes


class Run:
    """A started run and its ranks."""

    def __init__(
        self,
        launch: Launch,
        child: ProcessId,
        init: ProcessId | None,
        group: cgroup.Group | None = None,
        *,
        holds_processes: bool = False,
    ) -> None:
        self.child = child  # bubblewrap; at level 0 the only rank, torchrun or the starter
        self.group = group  # from level 2 on
        self.init = init  # of the sandbox, with its pid on the host; None at level 0
        self.holds_processes = (
            holds_processes  # the kernel enforces the process limit without a control group
        )
        self._launch = launch
        self._has_launcher = launch.torchrun or launch.ranks > 1
        self._memory_folders = bwrap.memory_folders(launch) if init is not None else []
        self._ranks: dict[int, ProcessId] = {}
        self._top: ProcessId | None = None
        self._killed_s: float | None = None

    def ranks(self) -> dict[int, ProcessId]:
        """The living ranks; searches for ranks that were not found before.

        A single rank is the top process itself; several ranks are children of torchrun or of the starter.
        Data-loader workers also have RANK set, but are children of a rank.  Of a command, what ``leaders`` finds now.
        """
        if self._launch.is_command:
            top = self.top()
            return leaders(top) if top is not None else {}
        if len(self._ranks) < self._launch.ranks:
            self._find_ranks()
        return {rank: process for rank, process in self._ranks.items() if is_alive(process)}

    def had_all_ranks(self) -> bool:
        """Whether every rank was found at some time; they may be gone by now.  Never of a command."""
        self.ranks()
        return len(self._ranks) == self._launch.ranks

    def all_live(self) -> bool:
        """Whether every rank lives, or the command itself."""
        if self._launch.is_command:
            top = self.top()
            return top is not None and is_alive(top)
        return len(self.ranks()) == self._launch.ranks

    def top(self) -> ProcessId | None:
        """The only rank, torchrun, the starter of the ranks or the command; None until it is found."""
        if self._top is None:
            self._top = self._find_top()
        return self._top

    def caretakers(self) -> dict[str, ProcessId]:
        """Processes that must notice the ends of others, by a name for people."""
        caretakers = {"bubblewrap": self.child} if self._launch.level else {}
        if self.init is not None:
            caretakers["the sandbox's pid 1"] = self.init
        top = self.top()
        if self._has_launcher and top is not None:
            caretakers["torchrun" if self._launch.torchrun else "the starter of the ranks"] = top
        return caretakers

    def members(self) -> list[int]:
        """Every process of the attempt, including orphans, which this subreaper adopts."""
        return descendants(os.getpid())

    def files_bytes(self) -> int:
        """Memory of files in the sandbox, such as in /dev/shm; 0 without a sandbox."""
        return 0 if self.init is None else bwrap.files_bytes(self._memory_folders, self.init.pid)

    def kill(self) -> None:
        """SIGKILL everything; the caller reaps, and repeats this until no process remains."""
        if self._killed_s is None:
            self._killed_s = time.monotonic()
        if self.init is not None and send_signal(self.init, signal.SIGKILL):
            return  # the kernel ends the whole namespace with it
        if self.group is not None and self.group.kill():
            return
        kill_all_below_us()

    def outlives_kill(self, now_s: float) -> bool:
        """Whether processes remain long after SIGKILL, because they wait inside the kernel."""
        return self._killed_s is not None and now_s - self._killed_s > UNDYING_AFTER_S

    def _find_ranks(self) -> None:
        top = self.top()
        if top is None:
            return
        candidates = children(top.pid) if self._has_launcher else [top.pid]
        nonce = f"BERTH_NONCE={self._launch.nonce}".encode()
        for pid in candidates:
            rank, process = rank_of(pid), identify(pid)
            if rank is not None and process is not None and nonce in environ(pid):
                self._ranks.setdefault(rank, process)

    def _find_top(self) -> ProcessId | None:
        if self.init is None:
            return None if self._launch.level else self.child
        # The process may have ended by now; orphans adopted by init later are younger.
        inside = [process for pid in children(self.init.pid) if (process := identify_dead(pid)) is not None]
        return min(inside, key=lambda process: (process.start_ticks, process.pid), default=None)


def kill_all_below_us() -> None:
    """SIGKILL every descendant of this process, including orphans."""
    for pid in descendants(os.getpid()):
        process = identify(pid)
        if process is not None:
            send_signal(process, signal.SIGKILL)


def start(launch: Launch, folder: AttemptFolder, environment: dict[str, str]) -> Run:
    """Start the ranks and write ``sandbox.json``.

    Raises:
        OSError: bubblewrap or the interpreter cannot be executed.
    """
    run = (
        _start_in_sandbox(launch, folder, environment)
        if launch.level
        else _start_bare(launch, folder, environment)
    )
    write_record(
        folder.sandbox,
        {
            "level": launch.level,
            "group": run.group.version if run.group else None,
            "landlock": bwrap.uses_landlock(launch),
            "bwrap": _row(run.child) if launch.level else None,
            "init": _row(run.init) if launch.level and run.init else _row(run.child),
        },
    )
    return run


def _start_bare(launch: Launch, folder: AttemptFolder, environment: dict[str, str]) -> Run:
    pid = start_child(
        run_command(launch),
        environment,
        folder=launch.cwd,
        log=folder.launcher_log,
        open_files=launch.open_files,
    )
    return Run(launch, _identify_child(pid), None)


def _start_in_sandbox(launch: Launch, folder: AttemptFolder, environment: dict[str, str]) -> Run:
    info, tell = os.pipe()
    wait, go = os.pipe()
    group = _make_group(launch) if launch.level > 1 else None
    filter_fd = bwrap.open_filter(launch)
    passed_fds = [tell, wait] if filter_fd is None else [tell, wait, filter_fd]
    try:
        pid = start_child(
            bwrap.command(
                *(launch, folder, bwrap.confined(launch, folder, run_command(launch))),
                info_fd=tell,
                wait_fd=wait,
                filter_fd=filter_fd,
            ),
            environment,
            folder=launch.work,
            # Nothing inside an image sends the output of its command there.
            log=folder.log(0) if launch.image is not None and launch.is_command else folder.launcher_log,
            open_files=launch.open_files,
            keep_fds=passed_fds,
            join=group.join_files if group else (),
        )
        os.close(passed_fds.pop(0))
        init = _read_init(info)
        held = group is None and _hold(launch, init)
    except BaseException:
        if group is not None:
            group.remove()
        raise
    finally:
        for fd in (info, go, *passed_fds):  # closing `go` lets bubblewrap continue
            os.close(fd)
    return Run(launch, _identify_child(pid), init, group, holds_processes=held)


def _hold(launch: Launch, init: ProcessId | None) -> bool:
    return init is not None and launch.pids is not None and hold_processes(init, launch.pids)


def _make_group(launch: Launch) -> cgroup.Group:
    group = cgroup.create(launch.nonce)
    if group is None:
        raise OSError(errno.EACCES, "no control group can be made, but the job asks for sandbox level 2")
    group.limit(memory_bytes=launch.memory_bytes, pids=launch.pids, cpus=launch.cpus)
    return group


def _identify_child(pid: int) -> ProcessId:
    # An unreaped child keeps its pid, even as a zombie.
    from orchestrator.supervisor.linux.processes import boot_id

    return identify(pid) or ProcessId(boot_id(), pid, 0)


def _read_init(info: int) -> ProcessId | None:
    """The sandbox's init; None where bubblewrap failed, whose output is in the launcher's log."""
    pid = bwrap.read_init(info)
    return None if pid is None else identify(pid)


def _row(process: ProcessId) -> dict[str, int]:
    return {"pid": process.pid, "start_ticks": process.start_ticks}
