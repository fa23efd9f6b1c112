"""The life of a supervisor: lock, identity, start, watch, exit record."""

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from orchestrator.facts.record import Fact
from orchestrator.supervisor.exit_record import Seen, describe
from orchestrator.supervisor.linux.kernel import become_subreaper
from orchestrator.supervisor.linux.processes import identify, name_of
from orchestrator.supervisor.protocol import lease, orders
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.launch import BadLaunch, Launch, read_launch
from orchestrator.supervisor.protocol.records import Heartbeat, Record, log_exception, write_record
from orchestrator.supervisor.ranks import shell
from orchestrator.supervisor.ranks.command import run_environment
from orchestrator.supervisor.ranks.run import Run, kill_all_below_us, start
from orchestrator.supervisor.ranks.stopping import (
    Stopping,
    ask_for_checkpoint,
    ask_for_profile,
    ask_for_stacks,
)
from orchestrator.supervisor.startup import ignore_signals, make_folders, read_secrets, take_lock
from orchestrator.supervisor.verdict import hiding, rank_reports
from orchestrator.supervisor.watch.disk import DiskWatch
from orchestrator.supervisor.watch.finished_files import FinishedFiles
from orchestrator.supervisor.watch.limits import LimitsWatch
from orchestrator.supervisor.watch.log_caps import LogCap
from orchestrator.supervisor.watch.stalls import HangWatch, ReapingWatch

_TICK_S = 0.1
_FAST_TICK_S = 0.02  # while a log grows fast compared to its cap
_STACKS_S = 1.0  # for the ranks to print their stacks before they are killed
_RECORD_TRIES = 600  # one every second: time for somebody to make room


def supervise(folder: AttemptFolder, secrets_fd: int) -> None:
    """Run the attempt in ``folder`` to its exit record; does nothing for an attempt that was started before.

    The secrets read from ``secrets_fd`` go only into the environment of the ranks; the exit record leaves them out.
    """
    ignore_signals()
    lock = take_lock(folder)
    if lock is None or folder.supervisor.exists() or folder.exit.is_file():
        return
    become_subreaper()
    make_folders(folder)
    supervision = Supervision(folder)
    infra: str | None = None
    try:
        supervision.run(secrets_fd)
    except BaseException as error:  # noqa: BLE001 -- every failure must end in a record
        log_exception()
        infra = supervision.give_up(error)
    supervision.record_end(infra)
    supervision.give_back_group()
    os.close(lock)


class Supervision:
    """One attempt from its identity to its exit record."""

    def __init__(self, folder: AttemptFolder) -> None:
        self._folder = folder
        self._launch: Launch | None = None
        self._run: Run | None = None
        self._book = orders.OrderBook(folder)
        self._heartbeat = Heartbeat(folder)
        self._heartbeat.beat()
        self._top: int | None = None  # exit code of the process that we started; negative: a signal
        self._cut_short = False  # only torchrun was left, so we ended it
        self._stopping: Stopping | None = None
        self._stop_row: dict[str, str | float] | None = None
        self._secrets: Mapping[str, str] = {}
        self._limits: LimitsWatch | None = None
        self._caps: Mapping[int | None, LogCap] = {}
        self._over_disk: Fact | None = None
        self._hang: Fact | None = None
        self._unreaped: Fact | None = None
        self._reaping_watch = ReapingWatch()
        self._kill_at_s: float | None = None
        self._started_at, self._started_s = time.time(), time.monotonic()

    def run(self, secrets_fd: int) -> None:
        """Start and watch the ranks until all their processes are gone."""
        self._launch = launch = read_launch(self._folder)
        self._limits = LimitsWatch(launch)
        written = [launch.work, launch.checkpoints, launch.output]
        written += [self._folder.logs, self._folder.errors, self._folder.finished, self._folder.metrics]
        written.append(self._folder.media)
        self._disk = DiskWatch(written, launch.disk_bytes, self._started_s)
        self._finished_files = FinishedFiles(
            self._folder, {"checkpoints/": launch.checkpoints, "work/": launch.work}
        )
        self._caps = _log_caps(self._folder, launch)
        self._hang_watch = _hang_watch(self._folder, launch, self._started_s)
        me = identify(os.getpid())
        assert me is not None  # noqa: S101 -- we are alive
        write_record(
            self._folder.supervisor, {**me.to_record(), "nonce": launch.nonce, "number": launch.number}
        )
        self._secrets = read_secrets(secrets_fd)
        self._obey()
        self._check_lease()
        if self._stop_row is None:
            self._run = start(launch, self._folder, run_environment(launch, self._folder, self._secrets))
            hiding.load()
            self._watch(self._run)

    def give_up(self, error: BaseException) -> str:
        """End all processes after an error of the supervisor or the launch; returns a sentence for the record."""
        while self._reap():
            kill_all_below_us()
            self._heartbeat.beat()
            signal.sigtimedwait({signal.SIGCHLD}, _TICK_S)
        if isinstance(error, BadLaunch):
            return str(error)
        if isinstance(error, OSError) and self._run is None:
            return f"The run could not be started: {error}"
        return f"The run could not be supervised any more: {error or type(error).__name__}"

    def record_end(self, infra: str | None) -> None:
        """Write the exit record, with retries: a finished training must not run again because the disk was full."""
        record = self._describe_end(infra)
        for _ in range(_RECORD_TRIES):
            try:
                write_record(self._folder.exit, record)
            except OSError:
                log_exception()
                with suppress(OSError):  # some file systems need room to write in place
                    self._heartbeat.beat()
                time.sleep(1.0)
            else:
                return
        # Without a record the lock is freed, and the agent sees a lost attempt.

    def _describe_end(self, infra: str | None) -> Record:
        seen = Seen(
            folder=self._folder,
            launch=self._launch,
            limits=self._limits,
            run=self._run,
            top=self._top,
            cut_short=self._cut_short,
            stopping=self._stopping,
            stop_row=self._stop_row,
            over_disk=self._over_disk,
            hang=self._hang,
            unreaped=self._unreaped,
            caps=self._caps,
            secrets=self._secrets,
            started_at=self._started_at,
            started_s=self._started_s,
            infra=infra,
        )
        return describe(seen)

    def give_back_group(self) -> None:
        """Remove the control group, which is empty now."""
        if self._run is not None and self._run.group is not None:
            self._run.group.remove()

    def _watch(self, run: Run) -> None:
        next_look_s = 0.0
        while self._reap():
            now_s = time.monotonic()
            self._cut_short = self._cut_short or (self._top is None and self._only_torchrun_left(run))
            kill_now = self._kill_at_s is not None and now_s >= self._kill_at_s
            if self._top is not None or self._cut_short or kill_now:
                run.kill()  # processes that the ranks left behind
            self._obey()
            if self._stopping is not None:
                self._stopping.step(run, self._folder, now_s)
            if now_s >= next_look_s:
                next_look_s = now_s + 1.0
                self._check_lease()
                self._look(run, now_s)
            fast = self._look_often(run, now_s)
            signal.sigtimedwait({signal.SIGCHLD}, _FAST_TICK_S if fast else _TICK_S)

    def _only_torchrun_left(self, run: Run) -> bool:
        """Whether all ranks are gone and their ends are on record.

        torchrun then only shuts itself down, which would delay a recovery by 0.2 to 0.7 s.
        """
        launch = self._launch
        if launch is None or not launch.torchrun or not run.had_all_ranks() or run.ranks():
            return False
        finished = rank_reports.read_finished(self._folder, launch.numbers)
        if len(finished) == launch.ranks and not any(finished.values()):
            return launch.nodes == 1  # the agent of rank 0's node serves the ranks of the others
        return bool(rank_reports.read_exit_codes(self._folder, launch.numbers))

    def _reap(self) -> bool:
        """Collect ended children; False once no child remains."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if self._run is not None and pid == self._run.child.pid:
                self._top = os.waitstatus_to_exitcode(status)

    def _obey(self) -> None:
        for order in self._book.new():
            try:
                self._carry_out(order)
            except OSError:  # the disk has no room for an answer
                log_exception()

    def _carry_out(self, order: orders.Known) -> None:
        if isinstance(order, orders.CheckpointOrder):
            if self._run is not None:
                ask_for_checkpoint(self._run)
        elif isinstance(order, orders.ProfileOrder):
            is_heard = self._run is not None and ask_for_profile(self._run)
            write_record(self._folder.profile, {"token": order.token, "heard": is_heard})
        elif isinstance(order, orders.ShellOrder):
            self._open_shell(order.token)
        else:
            self._stop(order)

    def _stop(self, order: orders.StopOrder) -> None:
        if self._stopping is not None:
            self._stopping.hurry(order, time.monotonic())
        elif self._top is None:
            self._stopping = Stopping(order, time.monotonic())
            self._stop_row = {"reason": order.reason, "at": time.time()}

    def _check_lease(self) -> None:
        """Stop the ranks once the lease has run out: another attempt may start elsewhere after the grace."""
        launch = self._launch
        if launch is None or launch.lease is None:
            return
        late_s = lease.overdue_s(launch.lease)
        if late_s is not None:
            self._stop(orders.StopOrder("lease", max(0.0, launch.grace_s - late_s)))

    def _open_shell(self, token: str) -> None:
        """Start what lets a person in; without it the run goes on."""
        try:
            assert self._launch is not None  # noqa: S101 -- read before the first order
            why = shell.open_shell(self._run, self._launch, self._folder, token)
        except OSError as error:
            log_exception()
            why = str(error)
        if why is not None:
            shell.refuse(self._folder, token, why)

    def _look_often(self, run: Run, now_s: float) -> bool:
        """Check on each tick what can grow by gigabytes a second; returns whether a log grows fast."""
        fast, limits = False, self._limits
        assert limits is not None  # noqa: S101 -- made before the ranks were started
        try:
            for cap in self._caps.values():
                fast |= cap.enforce()
            if self._kill_at_s is None and self._top is None:  # also during the grace of a stop
                limits.check(run, now_s)
        except OSError:
            log_exception()
        if self._kill_at_s is None and (limits.over_memory or limits.over_limit):
            self._kill_at_s = now_s
            run.kill()
        return fast

    def _is_free_to_end(self) -> bool:
        """Whether the end of this run is still undecided."""
        return self._stopping is None and self._kill_at_s is None and self._top is None

    def _look(self, run: Run, now_s: float) -> None:
        """Check everything else once a second; an error here must not end a training."""
        try:
            if run.outlives_kill(now_s):
                self._record_undying(run)
                return
            self._heartbeat.beat()
            full = self._disk.check(now_s)
            # Identify ranks early: later they may overwrite the memory that holds their environment.
            all_live = run.all_live()
            hang = self._hang_watch.check(now_s) if self._hang_watch else None
            unreaped = self._reaping_watch.check(run)
        except OSError:
            log_exception()
            return
        if all_live:
            self._vouch(now_s)
        if not self._is_free_to_end():
            return
        if full:
            self._over_disk, self._kill_at_s = full, now_s
        elif unreaped:
            self._unreaped, self._kill_at_s = unreaped, now_s
        elif hang:
            self._hang, self._kill_at_s = hang, now_s + _STACKS_S
            ask_for_stacks(run)

    def _vouch(self, now_s: float) -> None:
        """Record the files that the ranks finished writing.  Limits still hold if the disk has no room for the record."""
        try:
            self._finished_files.look(now_s)
        except OSError:
            log_exception()

    def _record_undying(self, run: Run) -> None:
        """Record processes that survive SIGKILL, and stop the heartbeat, so that nobody gets these devices."""
        if not self._folder.undying.exists():
            remaining = [{"pid": pid, "name": name_of(pid)} for pid in run.members()]
            write_record(self._folder.undying, {"processes": remaining})


def _log_caps(folder: AttemptFolder, launch: Launch) -> dict[int | None, LogCap]:
    if launch.log_bytes is None:
        return {}
    paths: dict[int | None, Path] = {rank: folder.log(rank) for rank in launch.numbers}
    paths[None] = folder.launcher_log
    return {rank: LogCap(path, launch.log_bytes) for rank, path in paths.items()}


def _hang_watch(folder: AttemptFolder, launch: Launch, now_s: float) -> HangWatch | None:
    if launch.hang_timeout_s is None:
        return None
    logs = {rank: folder.log(rank) for rank in launch.numbers}
    return HangWatch(folder.metrics, logs, launch.hang_timeout_s, now_s)
