"""Describes how an attempt ended, from what its supervisor saw and its ranks left behind."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from orchestrator.facts.record import Fact
from orchestrator.sentences import endings as _words  # registers them  # noqa: F401
from orchestrator.sentences.table import say
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.launch import Launch
from orchestrator.supervisor.protocol.records import Record, log_exception, read_record, read_tail
from orchestrator.supervisor.ranks.run import Run
from orchestrator.supervisor.ranks.stopping import Stopping
from orchestrator.supervisor.verdict import command_logs, rank_reports
from orchestrator.supervisor.verdict.ending import Ending, rank_rows
from orchestrator.supervisor.verdict.error_texts import explain_hidden_path
from orchestrator.supervisor.verdict.hiding import Hider, hide_in_errors, hider_of
from orchestrator.supervisor.verdict.missing import explain_missing
from orchestrator.supervisor.verdict.rules import classify, ended_by_peers, first_failure
from orchestrator.supervisor.watch.disk import is_full
from orchestrator.supervisor.watch.limits import LimitsWatch
from orchestrator.supervisor.watch.log_caps import LogCap

_TAIL_BYTES = 8192
_MOST_SIGNAL = 64


class Seen(NamedTuple):
    """What the supervisor saw of its attempt."""

    folder: AttemptFolder
    launch: Launch | None  # None: its record could not be read
    limits: LimitsWatch | None  # None: it failed before it had any
    run: Run | None  # None: never started
    top: int | None  # exit code of the process that was started; negative: a signal
    cut_short: bool  # only torchrun was left, so the supervisor ended it
    stopping: Stopping | None
    stop_row: Mapping[str, str | float] | None
    over_disk: Fact | None
    hang: Fact | None
    unreaped: Fact | None
    caps: Mapping[int | None, LogCap]  # of the ranks' logs, and with None of the launcher's
    secrets: Mapping[str, str]
    started_at: float  # wall clock
    started_s: float  # monotonic clock
    infra: str | None  # a sentence, if the supervisor failed


def describe(seen: Seen) -> Record:
    """The exit record of the attempt, whatever its files hold."""
    launch, ended_s = seen.launch, time.monotonic()
    try:
        ending = (
            _ending(seen, launch, seen.limits, ended_s)
            if launch and seen.limits
            else Ending(0, infra=seen.infra)
        )
        return _record_of(seen, ending, ended_s, _dropped_bytes(seen, launch) if launch else {})
    except Exception as error:  # noqa: BLE001 -- odd files of a run must not prevent the record
        log_exception()
        unread = f"What the run left behind cannot be read: {error}"
        return _record_of(seen, Ending(launch.ranks if launch else 0, infra=unread), ended_s, {})


def _record_of(seen: Seen, ending: Ending, ended_s: float, dropped_bytes: dict[str, int]) -> Record:
    """The exit record of an ending, whose kind and words are found here."""
    verdict = classify(ending)
    named: Mapping[str, object] = read_record(seen.folder.launch) or {}
    return {
        "number": named.get("number"),
        "nonce": named.get("nonce"),
        "kind": verdict.kind,
        **verdict.how.as_json(),
        "detail": say(verdict.how),  # for people who read the record, and for an older server
        "ranks": rank_rows(ending),
        "peers_lost": ended_by_peers(ending),
        "first_failure": first_failure(ending, verdict),
        "stop": seen.stop_row,
        "started_at": seen.started_at,
        "ended_at": time.time(),
        "run_s": ended_s - seen.started_s,
        "peak_memory_bytes": seen.limits.memory.peak_bytes if seen.limits else None,
        "dropped_bytes": dropped_bytes,
    }


def _dropped_bytes(seen: Seen, launch: Launch) -> dict[str, int]:
    """Bytes missing from each rank's log: dropped from its middle, or lost while the disk was full."""
    lost = rank_reports.read_lost_bytes(seen.folder, launch.numbers)
    for name, cap in seen.caps.items():
        try:
            cap.enforce(at_end=True)  # count what was written since the last look
        except OSError:
            log_exception()
        if name is not None:
            lost[name] = lost.get(name, 0) + cap.dropped_bytes
    return {str(rank): count for rank, count in lost.items() if count}


def _ending(seen: Seen, launch: Launch, limits: LimitsWatch, now_s: float) -> Ending:
    folder, ranks = seen.folder, launch.numbers
    group = seen.run.group if seen.run else None
    finished = rank_reports.read_finished(folder, ranks)
    hide = hider_of(seen.secrets.values())
    errors = rank_reports.read_errors(folder, ranks)
    tails = {rank: _tail_of(folder.log(rank), hide) for rank in ranks}
    words = " ".join([*(error.message for error in errors.values()), *tails.values()])
    codes = rank_reports.read_exit_codes(folder, ranks) if launch.torchrun or launch.ranks > 1 else {}
    top = None if seen.cut_short else _top_code(seen.top, launch, finished)
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
    stopping = seen.stopping
    return Ending(
        max([launch.ranks, *(rank + 1 - launch.first_rank for rank in [*codes, *errors])]),
        first_rank=launch.first_rank,
        top=top,
        torchrun=launch.torchrun,
        finished=finished,
        errors=errors,
        codes=codes,
        stop_reason=stopping.reason if stopping else None,
        stop_heard=stopping.heard if stopping else False,
        stop_outlasted_s=stopping.outlasted_s if stopping else None,
        infra=seen.infra,
        over_memory=limits.over_memory or limits.memory.killed_at_limit(group),
        over_limit=limits.over_limit or seen.over_disk,
        at_limit=limits.met_processes(seen.run, words)
        or explain_hidden_path(launch, errors.values())
        or explain_missing(launch, errors.values()),
        hang=seen.hang,
        unreaped=seen.unreaped,
        oom_killed=limits.memory.kernel_was_killing(now_s, group),
        disk_full=is_full(launch.work),
        started_ranks=0 if no_sandbox else sum(folder.log(rank).exists() for rank in ranks),
        left=rank_reports.read_left(folder, ranks),
        tails=tails,
        launcher_tail=tails[0] if no_sandbox else _tail_of(folder.launcher_log, hide),
    )


def _tail_of(log: Path, hide: Hider) -> str:
    """The last lines of a log without values of secrets; a line longer than the tail may be cut within one."""
    try:
        is_cut = log.stat(follow_symlinks=False).st_size > _TAIL_BYTES
    except OSError:
        return ""
    tail = read_tail(log, _TAIL_BYTES)
    return hide.in_cut(tail) if is_cut else hide(tail)


def _top_code(code: int | None, launch: Launch, finished: Mapping[int, int]) -> int | None:
    """Translate bubblewrap's exit code: like a shell it reports signal n as 128 + n, but a script may use that code."""
    if code is None or not 128 < code <= 128 + _MOST_SIGNAL:
        return code
    if launch.level == 0:  # only a shell's
        return 128 - code if launch.is_command else code
    return code if launch.ranks == 1 and not launch.torchrun and finished.get(0) == code else 128 - code
