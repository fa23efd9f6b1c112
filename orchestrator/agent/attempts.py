"""Turns what an attempt's folder shows into transitions of its job."""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from orchestrator.agent.checkpoints import CheckpointKeeper
from orchestrator.agent.follow import Follower, storable_text
from orchestrator.agent.watches.out_of_memory import blame_others
from orchestrator.jobs import lifecycle
from orchestrator.jobs.launch import launcher
from orchestrator.jobs.lifecycle import Ending
from orchestrator.jobs.silence import is_silent
from orchestrator.models import Attempt, AttemptState, ExitKind, Job, JobState
from orchestrator.store.logs import display_text, read_tail
from orchestrator.supervisor.liveness import STALE_HEARTBEAT_S, Liveness, end_leftovers, liveness
from orchestrator.supervisor.records import read_record

logger = logging.getLogger(__name__)

LAUNCH_DEADLINE_S = 15.0
REST_A_TURN_S = 0.3
TAIL_LINES = 20
SILENT_TEXT = (
    "Its supervisor has given no sign of life for 30 s; its devices are kept until it answers or is gone."
)
UNDYING_TEXT = (
    "It was killed, but {who} does not end: it waits in the kernel, mostly for a driver or a network disk. Its devices "
    "are kept until it is gone; if that does not come, restart the machine."
)
SILENCE_TEXT = "It has reported nothing for 10 min or longer"
SILENCE_HINT = "Its log and the use of its devices may say why."
LOST_TEXT = "Its processes ended without a word: the supervisor was killed, or the server went down."


class AttemptWatch:
    """Follows one attempt until it ended: its life, its telemetry, its checkpoints."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.folder = settings.HOME.job(attempt.job_id).attempt(attempt.number)
        self.follower: Follower | None = None
        self.keeper = CheckpointKeeper(attempt)
        self.followed_at = 0.0  # monotonic
        self.dying_since: float | None = None  # monotonic
        self.silent_since: datetime | None = None
        self.unstarted_since: float | None = None  # monotonic: the clock on the wall may jump

    def close(self) -> None:
        self.keeper.stop()
        if self.follower is not None:
            self.follower.close()
            self.follower = None

    def check(self, attempt: Attempt, now: datetime) -> None:
        """Look at the folder and act on what changed; ``attempt`` is the row as it is now, with its job."""
        self.attempt = attempt
        if attempt.state == AttemptState.CREATED:
            return  # nobody launched it yet; the errands' sweep does
        match liveness(self.folder):
            case Liveness.ENDED:
                # The turn may have begun before this attempt did.
                seen_at = max(now, attempt.started_at or now)
                self._end(_ending(read_record(self.folder.exit) or {}, seen_at))
            case Liveness.ALIVE:
                self._note_alive()
            case Liveness.UNKNOWN if attempt.job.state != JobState.UNKNOWN:
                lifecycle.lose_sight(attempt, reason=self._why_silent())
            case Liveness.DYING:
                self._end_leftovers()
            case Liveness.LOST:
                self._end(Ending(kind=ExitKind.LOST, detail=LOST_TEXT, at=now, run_s=self._run_s()))
            case Liveness.NEVER_STARTED:
                self._give_up_late_launch(now)

    def follow(self, *, at_end: bool = False) -> bool:
        """Take in what the run wrote since; True when there may be more at once."""
        if self.attempt.state == AttemptState.CREATED:
            return False
        if self.follower is None:
            self.follower = Follower(self.attempt)
        return self.follower.poll(at_end=at_end)

    def _note_alive(self) -> None:
        self.keeper.begin()
        state = self.attempt.job.state
        if state == JobState.STARTING:
            lifecycle.run(self.attempt, started_at=timezone.now())
        elif state == JobState.UNKNOWN:
            lifecycle.regain_sight(self.attempt)
        elif is_silent(self.attempt.job, timezone.now()):
            self._note_silence(self.attempt.job)

    def _note_silence(self, job: Job) -> None:
        """Tell it once, also when the agent was started again meanwhile."""
        if self.silent_since == job.last_report_at:
            return
        self.silent_since = job.last_report_at
        text = f"{SILENCE_TEXT} (the last step was {job.step:,}). {SILENCE_HINT}"
        if not job.events.filter(at__gte=job.last_report_at, reason__startswith=SILENCE_TEXT).exists():
            lifecycle.remark(job, text, actor="agent")

    def _end_leftovers(self) -> None:
        """SIGKILL what a dead supervisor left; what does not end keeps its devices, and that is told (S14)."""
        end_leftovers(self.folder)
        if self.dying_since is None:
            self.dying_since = time.monotonic()
        if (
            time.monotonic() - self.dying_since > STALE_HEARTBEAT_S
            and self.attempt.job.state != JobState.UNKNOWN
        ):
            lifecycle.lose_sight(self.attempt, reason=UNDYING_TEXT.format(who="a process that it left"))

    def _why_silent(self) -> str:
        left = (read_record(self.folder.undying) or {}).get("processes")
        if not isinstance(left, list) or not left:
            return SILENT_TEXT
        last = left[-1]  # parents come first
        return UNDYING_TEXT.format(who=f"process {last.get('pid')} ({storable_text(str(last.get('name')))})")

    def _give_up_late_launch(self, now: datetime) -> None:
        if self.unstarted_since is None or launcher.is_preparing(self.attempt):
            self.unstarted_since = time.monotonic()
        if time.monotonic() - self.unstarted_since > LAUNCH_DEADLINE_S:
            detail = f"The supervisor did not start within {LAUNCH_DEADLINE_S:.0f} s."
            if launcher.forestall(self.attempt, detail):
                self._end(Ending(kind=ExitKind.INFRA, detail=detail, at=now))

    def _run_s(self) -> float:
        """From its supervisor's first record to its last sign of life: a day without power is not charged (F67)."""
        try:
            last_s = self.folder.heartbeat.stat().st_mtime
            return max(0.0, last_s - self.folder.supervisor.stat().st_mtime)
        except FileNotFoundError:
            return 0.0

    def _end(self, ending: Ending) -> None:
        """Take in the last lines and checkpoints, then close the attempt; may need several turns."""
        until_s = time.monotonic() + REST_A_TURN_S
        while self.follow(at_end=True):
            if time.monotonic() > until_s:
                return
        # A script that saved because it was stopped closed its files itself, whatever its attempt is called.
        saved = bool(ending.ranks) and all(rank.get("finished") for rank in ending.ranks)
        clean = saved or ending.kind == ExitKind.OK
        progressed = self.keeper.finish(clean=clean, run_s=ending.run_s)
        if progressed is None:
            return
        tail = self._log_tail(ending.first_failure) if ending.kind != ExitKind.OK else ""
        ending = blame_others(self.attempt, replace(ending, log_tail=tail, progressed=progressed))
        lifecycle.end(self.attempt, ending)
        self.close()

    def _log_tail(self, first_failure: Mapping[str, Any] | None) -> str:
        rank = first_failure.get("rank") if first_failure else 0
        path = self.folder.log(rank if isinstance(rank, int) else 0)
        try:
            chunk = read_tail(path, TAIL_LINES)
        except OSError:
            return ""
        return display_text(chunk.data)


def _ending(record: Mapping[str, Any], now: datetime) -> Ending:
    """Read an exit record; a supervisor of another version may have left fields out."""
    kind = record.get("kind")
    dropped = record.get("dropped_bytes") or {}
    return Ending(
        kind=ExitKind(kind) if kind in ExitKind.values else ExitKind.INFRA,
        detail=storable_text(str(record.get("detail") or "")),
        at=now,
        run_s=float(record.get("run_s") or 0.0),
        ranks=_storable(record.get("ranks") or []),
        first_failure=_storable(record.get("first_failure")),
        peak_memory_bytes=record.get("peak_memory_bytes"),
        dropped_log_bytes=sum(int(each) for each in dropped.values()),
    )


def _storable(value: Any) -> Any:
    """A part of a record that any database can keep: exceptions' messages are the run's own text."""
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, list):
        return [_storable(each) for each in value]
    if isinstance(value, dict):
        return {storable_text(str(name)): _storable(each) for name, each in value.items()}
    return value
