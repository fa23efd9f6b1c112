"""The life of a supervisor: lock, identity, start, watch, exit record."""

import os
import signal
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from orchestrator.facts.record import Fact
from orchestrator.sentences import endings as _words  # registers them  # noqa: F401
from orchestrator.sentences.table import say
from orchestrator.supervisor.linux.kernel import become_subreaper
from orchestrator.supervisor.linux.processes import identify, name_of
from orchestrator.supervisor.protocol import lease, orders
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.launch import BadLaunch, Launch, read_launch
from orchestrator.supervisor.protocol.records import Heartbeat, Record, read_record, read_tail, write_record
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
from orchestrator.supervisor.verdict import command_logs, rank_reports
from orchestrator.supervisor.verdict.ending import Ending, rank_rows
from orchestrator.supervisor.verdict.error_texts import explain_hidden_path
from orchestrator.supervisor.verdict.hiding import hide_in_errors, hider_of
from orchestrator.supervisor.verdict.missing import explain_missing
from orchestrator.supervisor.verdict.rules import classify, ended_by_peers, first_failure
from orchestrator.supervisor.watch.disk import DiskWatch, is_full
from orchestrator.supervisor.watch.finished_files import FinishedFiles
from orchestrator.supervisor.watch.limits import LimitsWatch
from orchestrator.supervisor.watch.log_caps import LogCap
from orchestrator.supervisor.watch.stalls import HangWatch, ReapingWatch

_TICK_S = 0.1
_FAST_TICK_S = 0.02  # while a log grows fast compared to its cap
_STACKS_S = 1.0  # for the ranks to print their stacks before they are killed
_TAIL_BYTES = 8192
_MOST_SIGNAL = 64
_RECORD_TRIES = 60  # one every second


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
        traceback.print_exc()
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
                traceback.print_exc()
                self._heartbeat.beat()
                time.sleep(1.0)
            else:
                return
        # Without a record the lock is freed, and the agent sees a lost attempt.

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
            traceback.print_exc()
            why = str(error)
        if why is not None:
            shell.refuse(self._folder, token, why)

    def _look_often(self, run: Run, now_s: float) -> bool:
        """Check on each tick what can grow by gigabytes a second; returns whether a log grows fast."""
        fast = False
        try:
            for cap in self._caps.values():
                fast |= cap.enforce()
            if self._kill_at_s is None and self._top is None:  # also during the grace of a stop
                self._limits.check(run, now_s)
        except OSError:
            traceback.print_exc()
        if self._kill_at_s is None and (self._limits.over_memory or self._limits.over_limit):
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
            traceback.print_exc()
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
            traceback.print_exc()

    def _record_undying(self, run: Run) -> None:
        """Record processes that survive SIGKILL, and stop the heartbeat, so that nobody gets these devices."""
        if not self._folder.undying.exists():
            remaining = [{"pid": pid, "name": name_of(pid)} for pid in run.members()]
            write_record(self._folder.undying, {"processes": remaining})

    def _describe_end(self, infra: str | None) -> Record:
        launch, ended_s = self._launch, time.monotonic()
        try:
            ending = self._ending(launch, infra, ended_s) if launch else Ending(0, infra=infra)
            return self._end_of(ending, ended_s, self._dropped_bytes(launch) if launch else {})
        except Exception as error:  # noqa: BLE001 -- odd files of a run must not prevent the record
            traceback.print_exc()
            unread = f"What the run left behind cannot be read: {error}"
            return self._end_of(Ending(launch.ranks if launch else 0, infra=unread), ended_s, {})

    def _end_of(self, ending: Ending, ended_s: float, dropped_bytes: dict[str, int]) -> Record:
        """The exit record of an ending, whose kind and words are found here."""
        verdict = classify(ending)
        named: Mapping[str, object] = read_record(self._folder.launch) or {}
        return {
            "number": named.get("number"),
            "nonce": named.get("nonce"),
            "kind": verdict.kind,
            **verdict.how.as_json(),
            "detail": say(verdict.how),  # for people who read the record, and for an older server
            "ranks": rank_rows(ending),
            "peers_lost": ended_by_peers(ending),
            "first_failure": first_failure(ending, verdict),
            "stop": self._stop_row,
            "started_at": self._started_at,
            "ended_at": time.time(),
            "run_s": ended_s - self._started_s,
            "peak_memory_bytes": self._limits.memory.peak_bytes if self._launch else None,
            "dropped_bytes": dropped_bytes,
        }

    def _dropped_bytes(self, launch: Launch) -> dict[str, int]:
        """Bytes missing from each rank's log: dropped from its middle, or lost while the disk was full."""
        lost = rank_reports.read_lost_bytes(self._folder, launch.numbers)
        for name, cap in self._caps.items():
            try:
                cap.enforce(at_end=True)  # count what was written since the last look
            except OSError:
                traceback.print_exc()
            if name is not None:
                lost[name] = lost.get(name, 0) + cap.dropped_bytes
        return {str(rank): count for rank, count in lost.items() if count}

    def _ending(self, launch: Launch, infra: str | None, now_s: float) -> Ending:
        folder, ranks = self._folder, launch.numbers
        group = self._run.group if self._run else None
        finished = rank_reports.read_finished(folder, ranks)
        hide = hider_of(self._secrets.values())
        errors = rank_reports.read_errors(folder, ranks)
        limits, memory = self._limits, self._limits.memory
        tails = {rank: hide(read_tail(folder.log(rank), _TAIL_BYTES)) for rank in ranks}
        words = " ".join([*(error.message for error in errors.values()), *tails.values()])
        codes = rank_reports.read_exit_codes(folder, ranks) if launch.torchrun or launch.ranks > 1 else {}
        top = None if self._cut_short else _top_code(self._top, launch, finished)
        # bubblewrap's own words stand where the command's would.
        no_sandbox = (
            launch.image is not None
            and launch.is_command
            and bool(top)
            and command_logs.is_of_sandbox(tails.get(0, ""))
        )
        if launch.is_command and top and not errors:
            codes, errors = command_logs.read(read_tail(folder.log(0), command_logs.TAIL_BYTES))
        errors = hide_in_errors(hide, errors)
        return Ending(
            max([launch.ranks, *(rank + 1 - launch.first_rank for rank in [*codes, *errors])]),
            first_rank=launch.first_rank,
            top=top,
            torchrun=launch.torchrun,
            finished=finished,
            errors=errors,
            codes=codes,
            stop_reason=self._stopping.reason if self._stopping else None,
            stop_heard=self._stopping.heard if self._stopping else False,
            stop_outlasted_s=self._stopping.outlasted_s if self._stopping else None,
            infra=infra,
            over_memory=limits.over_memory or memory.killed_at_limit(group),
            over_limit=limits.over_limit or self._over_disk,
            at_limit=limits.met_processes(self._run, words)
            or explain_hidden_path(launch, errors.values())
            or explain_missing(launch, errors.values()),
            hang=self._hang,
            unreaped=self._unreaped,
            oom_killed=memory.kernel_was_killing(now_s, group),
            disk_full=is_full(launch.work),
            started_ranks=0 if no_sandbox else sum(folder.log(rank).exists() for rank in ranks),
            left=rank_reports.read_left(folder, ranks),
            tails=tails,
            launcher_tail=tails[0] if no_sandbox else hide(read_tail(folder.launcher_log, _TAIL_BYTES)),
        )


def _top_code(code: int | None, launch: Launch, finished: Mapping[int, int]) -> int | None:
    """Translate bubblewrap's exit code: like a shell it reports signal n as 128 + n, but a script may use that code."""
    if code is None or not 128 < code <= 128 + _MOST_SIGNAL:
        return code
    if launch.level == 0:  # only a shell's
        return 128 - code if launch.is_command else code
    return code if launch.ranks == 1 and not launch.torchrun and finished.get(0) == code else 128 - code


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
