"""Turns the state of an attempt's folder into transitions of its job."""

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from orchestrator.agent.checkpoints import CheckpointKeeper
from orchestrator.agent.follow import Follower
from orchestrator.agent.run_values import storable_text
from orchestrator.agent.unread_files import BROKEN, TRY_FOR_S, reason_of
from orchestrator.agent.watches.halts import HaltWatch
from orchestrator.agent.watches.memory import blame_others
from orchestrator.facts.endings import Ended
from orchestrator.facts.events import Happened
from orchestrator.facts.record import Fact, fact, sentence_only
from orchestrator.jobs import lifecycle, plan_accuracy
from orchestrator.jobs.launch import launcher
from orchestrator.jobs.launch.engines import engine_of, order_of, read_whole
from orchestrator.jobs.launch.trainers import failed_on_checkpoint
from orchestrator.jobs.lifecycle import Ending
from orchestrator.jobs.progress import is_silent
from orchestrator.models import Attempt, AttemptState, ExitKind, Job, JobState
from orchestrator.nodes.copies import LEASE, STATE
from orchestrator.people.secrets import quotable
from orchestrator.sentences import say
from orchestrator.store.logs.chunks import read_tail
from orchestrator.store.logs.text import plain_text, split_long_lines
from orchestrator.supervisor.liveness import STALE_HEARTBEAT_S, Liveness
from orchestrator.supervisor.protocol.records import read_record
from orchestrator.supervisor.verdict.rules import FirstFailure

logger = logging.getLogger(__name__)

LAUNCH_DEADLINE_S = 15.0
REST_A_TURN_S = 0.3
REREAD_AFTER_S, REREAD_WITHIN_S = 1.0, 30.0  # after reading failed
ENDS_SOON_S = 1.0  # a large checkpoint takes longer; then nobody notices the agent's next turn
UNANSWERED_S = 2.0
TAIL_LINES = 20


class AttemptWatch:
    """Follows one attempt until its end: its liveness, telemetry and checkpoints."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.folder = settings.HOME.job(attempt.job_id).attempt(attempt.number)
        self.follower: Follower | None = None
        self.keeper = CheckpointKeeper(attempt)
        self.followed_at = 0.0  # monotonic
        self.has_news = False  # reported or ended since ``take_news``
        self.ended_at: float | None = None  # monotonic: when its end was first seen
        self.is_unreadable = False  # what it wrote last
        self.unread_since: float | None = None  # monotonic: reading what it writes fails
        self.reread_at = 0.0  # monotonic
        self.is_unread_told = False
        self.halts = HaltWatch()
        self.dying_since: float | None = None  # monotonic
        self.silent_since: datetime | None = None
        self.unstarted_since: float | None = None  # monotonic: the wall clock may jump
        self.unanswered_since: float | None = None  # monotonic

    def close(self) -> None:
        self.keeper.stop()
        if self.follower is not None:
            self.follower.close()
            self.follower = None

    def check(self, attempt: Attempt, now: datetime) -> None:
        """Check the folder and act on changes; ``attempt`` is the current row, with its job."""
        self.attempt = attempt
        if attempt.state == AttemptState.CREATED:
            return  # not launched yet; the sweep of the outbox does that
        engine, order = engine_of(attempt), order_of(attempt)
        state = engine.state(order)
        if state is not Liveness.UNKNOWN:
            self.unanswered_since = None
        match state:
            case Liveness.ENDED:
                # This turn may have begun before the attempt did.
                seen_at = max(now, attempt.started_at or now)
                self._end(_ending(read_whole(engine, order, self.folder.exit.name) or {}, seen_at))
            case Liveness.ALIVE:
                self._note_alive()
            case Liveness.UNKNOWN if attempt.job.state != JobState.UNKNOWN and self._stays_unanswered():
                lifecycle.lose_sight(attempt, why=self._why_silent())
            case Liveness.DYING:
                self._end_leftovers()
            case Liveness.LOST:
                self._end(Ending(kind=ExitKind.LOST, how=self._how_lost(), at=now, run_s=self._run_s()))
            case Liveness.NEVER_STARTED:
                self._give_up_late_launch(now)

    def follow(self, *, at_end: bool = False) -> bool:
        """Read what the run wrote since the last call; True if more may be waiting already."""
        if self.attempt.state == AttemptState.CREATED:
            return False
        if time.monotonic() < self.reread_at:
            return at_end
        try:
            if self.follower is None:
                self.follower = Follower(self.attempt)
            committed = self.follower.committed
            more = self.follower.poll(at_end=at_end)
        except OSError as error:
            if error.errno not in BROKEN:
                raise
            self._note_unread(error)
            if at_end:
                raise
            return False
        self.unread_since = None
        self.has_news = self.has_news or self.follower.committed is not committed
        return more

    def _note_unread(self, error: OSError) -> None:
        """Start again from what is committed, in a while; the job's history says if that fails for long."""
        now_s = time.monotonic()
        if self.unread_since is None:
            self.unread_since = now_s
            logger.exception("What %s writes cannot be read; trying again", self.attempt)
        failed_for_s = now_s - self.unread_since
        self.reread_at = now_s + min(max(REREAD_AFTER_S, failed_for_s / 4), REREAD_WITHIN_S)
        if self.follower is not None:
            with suppress(OSError):
                self.follower.close()
            self.follower = None
        if failed_for_s >= TRY_FOR_S and not self.is_unread_told and self.ended_at is None:
            self.is_unread_told = True
            what = fact(Happened.READING_FAILS, reason=reason_of(error))
            if not self.attempt.job.events.of(what.code, reason=what.facts["reason"]).exists():
                lifecycle.remark(self.attempt.job, what, actor="agent")

    def take_news(self) -> bool:
        """Whether the attempt reported or ended since the last call."""
        has_news, self.has_news = self.has_news, False
        return has_news

    def ends_soon(self) -> bool:
        """Whether the attempt's last files are being read since a moment ago: its devices wait for that."""
        return self.ended_at is not None and time.monotonic() - self.ended_at < ENDS_SOON_S

    def _note_alive(self) -> None:
        self.keeper.begin()
        state = self.attempt.job.state
        if state == JobState.STARTING:
            lifecycle.run(self.attempt, started_at=timezone.now())
        elif state == JobState.UNKNOWN:
            lifecycle.regain_sight(self.attempt)
        elif is_silent(self.attempt.job, timezone.now()):
            self._note_silence(self.attempt.job)
        if state == JobState.RUNNING:
            self._note_halt()

    def _note_halt(self) -> None:
        """Record that a process of the run is stopped, or goes on again."""
        news = self.halts.look_in_time(self.folder, time.monotonic())
        # People may well stop programs in a session's terminals.  A turn without news costs no query.
        if news is not None and not self.attempt.job.is_session:
            lifecycle.remark(self.attempt.job, news, actor="agent")

    def _note_silence(self, job: Job) -> None:
        """Record the silence once, even if the agent has restarted since."""
        if self.silent_since == job.last_report_at:
            return
        self.silent_since = job.last_report_at
        if not job.events.of(Happened.SILENT).filter(at__gte=job.last_report_at).exists():
            lifecycle.remark(job, fact(Happened.SILENT, step=job.step), actor="agent")

    def _end_leftovers(self) -> None:
        """SIGKILL what a dead supervisor left behind; a process that does not end keeps its devices and is reported."""
        engine_of(self.attempt).end_leftovers(order_of(self.attempt))
        if self.dying_since is None:
            self.dying_since = time.monotonic()
        if (
            time.monotonic() - self.dying_since > STALE_HEARTBEAT_S
            and self.attempt.job.state != JobState.UNKNOWN
        ):
            lifecycle.lose_sight(self.attempt, why=fact(Happened.PROCESS_UNDYING))

    def _stays_unanswered(self) -> bool:
        """Whether nobody has answered for a while: one lost answer says nothing about the run."""
        if self.unanswered_since is None:
            self.unanswered_since = time.monotonic()
        return time.monotonic() - self.unanswered_since >= UNANSWERED_S

    def _why_silent(self) -> Fact:
        record = read_whole(engine_of(self.attempt), order_of(self.attempt), self.folder.undying.name)
        left = (record or {}).get("processes")
        if not isinstance(left, list) or not left:
            return fact(Happened.SUPERVISOR_SILENT, for_s=STALE_HEARTBEAT_S)
        last = left[-1]  # parents come first
        name = storable_text(str(last.get("name")))
        return fact(Happened.PROCESS_UNDYING, pid=last.get("pid"), name=name)

    def _how_lost(self) -> Fact:
        folders = {self.attempt.node: self.folder}
        folders |= {node: self.folder.part(node) for node in self.attempt.nodes[1:]}
        for node, folder in folders.items():
            if (read_record(folder.root / STATE) or {}).get("why") == LEASE:
                return fact(Ended.LEASE_RAN_OUT, node=node)
        return fact(Ended.LOST)

    def _give_up_late_launch(self, now: datetime) -> None:
        if self.unstarted_since is None or launcher.is_preparing(self.attempt):
            self.unstarted_since = time.monotonic()
        if launcher.is_dead(self.attempt):
            how = fact(Ended.LAUNCH_DIED)
        elif time.monotonic() - self.unstarted_since > LAUNCH_DEADLINE_S:
            how = fact(Ended.NOT_STARTED_IN_TIME, deadline_s=LAUNCH_DEADLINE_S)
        else:
            return
        if launcher.forestall(self.attempt, how):
            self._end(Ending(kind=ExitKind.INFRA, how=how, at=now))

    def _run_s(self) -> float:
        """Seconds from the supervisor's first record to its last heartbeat: a day without power is not charged."""
        try:
            last_s = self.folder.heartbeat.stat().st_mtime
            return max(0.0, last_s - self.folder.supervisor.stat().st_mtime)
        except FileNotFoundError:
            return 0.0

    def _end(self, ending: Ending) -> None:
        """Read the last lines and checkpoints, then close the attempt; may need several turns."""
        if self.ended_at is None:
            self.ended_at = time.monotonic()
        until_s = time.monotonic() + REST_A_TURN_S
        while self._read_last():
            if time.monotonic() > until_s or time.monotonic() < self.reread_at:
                return
        # A script that was stopped and saved closed its files itself, whatever the kind of the ending.
        saved = bool(ending.ranks) and all(rank.get("finished") for rank in ending.ranks)
        is_done = ending.kind == ExitKind.OK
        progressed = self.keeper.finish(clean=saved or is_done, is_done=is_done, run_s=ending.run_s)
        if progressed is None:
            return
        tail = self._log_tail(ending.first_failure) if ending.kind != ExitKind.OK else ""
        ending = blame_others(self.attempt, replace(ending, log_tail=tail, progressed=progressed))
        if ending.kind == ExitKind.USER_ERROR and not progressed:
            ending = replace(ending, not_resumable=failed_on_checkpoint(self.attempt))
        if far_off := plan_accuracy.keep_measured(self.attempt, ending.at):
            lifecycle.remark(self.attempt.job, far_off, actor=f"attempt {self.attempt.number}")
        lifecycle.end(self.attempt, ending)
        self.has_news, self.ended_at = True, None
        self.close()

    def _read_last(self) -> bool:
        """Read what the run left unread; True if more is waiting.

        What cannot be read is passed over: read again it would fail again, and the attempt would keep its devices.
        """
        if self.is_unreadable:
            return False
        try:
            return self.follow(at_end=True)
        except (OperationalError, InterfaceError):
            raise  # of the database, which gets better
        except OSError as error:
            since_s = time.monotonic() if self.unread_since is None else self.unread_since
            if error.errno not in BROKEN:
                raise  # of a full disk, or a server that does not answer: these get better
            if time.monotonic() - since_s < TRY_FOR_S:
                return True
        except Exception:
            logger.exception("What %s wrote last cannot be read; it ends without", self.attempt)
        self.is_unreadable = True
        lifecycle.remark(self.attempt.job, fact(Happened.END_UNREAD), actor="agent")
        return False

    def _log_tail(self, first_failure: FirstFailure | None) -> str:
        rank = first_failure.get("rank") if first_failure else 0
        path = self.folder.log(rank if isinstance(rank, int) else 0)
        try:
            chunk = read_tail(path, TAIL_LINES)
        except OSError:
            return ""
        text = quotable(self.attempt.job, self.attempt, plain_text(chunk.data), is_cut=chunk.is_cut)
        return split_long_lines(text)


def _ending(record: Mapping[str, Any], now: datetime) -> Ending:
    """Read an exit record; a supervisor of another version may have left fields out."""
    kind = record.get("kind")
    dropped = record.get("dropped_bytes") or {}
    return Ending(
        kind=ExitKind(kind) if kind in ExitKind.values else ExitKind.INFRA,
        how=_how(record),
        at=now,
        run_s=float(record.get("run_s") or 0.0),
        ranks=_storable(record.get("ranks") or []),
        first_failure=_storable(record.get("first_failure")),
        peak_memory_bytes=record.get("peak_memory_bytes"),
        dropped_log_bytes=sum(int(size) for size in dropped.values()),
    )


def _how(record: Mapping[str, Any]) -> Fact:
    """How a run ended; the sentence alone where a supervisor of another version wrote no facts that are known here."""
    how = Fact.read(_storable(dict(record)))
    detail = storable_text(str(record.get("detail") or ""))
    if not how:
        return sentence_only(detail)
    try:
        say(how)
    except (AttributeError, LookupError, TypeError, ValueError):
        logger.warning("An exit record has facts that this version cannot tell: %s", how.code)
        return sentence_only(detail)
    return how


def _storable(value: Any) -> Any:
    """Make a part of a record storable in any database: messages of exceptions are the run's own text."""
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if isinstance(value, dict):
        return {storable_text(str(name)): _storable(item) for name, item in value.items()}
    return value
