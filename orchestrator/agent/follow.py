"""Takes in what a run writes: metric lines, numbers printed on stdout, growth of its logs.

Every line counts once, whatever is killed: the columns are made durable first, then the offset up to which
the file was read is committed together with everything derived from it (docs/protocol.md, rule 11).
"""

import math
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from berth.losses import is_loss
from orchestrator.agent.follow_events import EventFiles
from orchestrator.agent.telemetry.metric_lines import INT64_LAST, ParsedBatch, parse_lines
from orchestrator.agent.telemetry.printed_lines import LineParser
from orchestrator.agent.telemetry.standing import STEP
from orchestrator.jobs import lifecycle, plan_changes, restarts
from orchestrator.live import wakeups
from orchestrator.models import Attempt, Job
from orchestrator.store.log_lines import LineIndex
from orchestrator.store.log_merge import MergedIndex
from orchestrator.store.logs import read_log, split_lines
from orchestrator.store.metrics import MetricWriter, Point, seq_before
from orchestrator.store.plain_file import open_plain
from orchestrator.store.series import last_values
from training.events import (
    BALANCED_EVENT,
    CHECKPOINT_FAILED_EVENT,
    EVENT,
    FALLBACK_EVENT,
    LESS_MEMORY_EVENT,
    PAUSED_EVENT,
    RESUMED_EVENT,
    UNUSED_EVENT,
    WENT_ON_EVENT,
)
from training.plan.given import PLAN_EVENT

MOST_BYTES_A_POLL = 1 << 20
MOST_AT_END_BYTES = 1 << 30  # waiting when the run is over; of more the newest are read
READ_AT_END_BYTES = 256 << 20
MOST_LOG_BYTES, MOST_LOG_BYTES_AT_END = 256 << 10, 1 << 20  # of rank 0's log at a time
MOST_LAST_VALUES = 200
RATE_WINDOW_S = 30.0
RATE_EVERY_S = 1.0


class Follower:
    """Reads one attempt's files from where the last commit stands; one at a time for each attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.job_id = attempt.job_id
        job_folder = settings.HOME.job(attempt.job_id)
        self.folder = job_folder.attempt(attempt.number)
        self.committed: dict[str, Any] = attempt.followed
        state = self.committed
        self.metrics_offset: int = state.get("metrics", 0)
        self.stdout_offset: int = state.get("stdout", 0)
        # Then stdout's patterns are off: what the training library prints is for people.
        self.file_speaks: bool = state.get("file_speaks", attempt.job.spec_fields.get("kind") == "model")
        self.parser = LineParser()
        if "parser" in state:
            self.parser.carry_on(state["parser"])
        self.columns = job_folder.metrics
        self.since_s = (attempt.launched_at or attempt.created_at).timestamp()
        self.writer = MetricWriter(self.columns, attempt.number, self.since_s, state.get("columns"))
        self.printed: bool = state.get("printed", False)  # some of the points are of printed lines
        self.events = EventFiles(job_folder, self.since_s, state.get("event_files"))
        self.events_speak: bool = state.get("events_speak", False)  # likewise
        self.last_step: int | None = state.get("last_step")
        self.stepped: bool = state.get("stepped", self.last_step is not None)
        self.log_sizes: dict[int, int] = {}
        self.log_indexes: dict[int, LineIndex] = {}
        self.merged = MergedIndex(self.folder.merged_index) if attempt.job.gpus > 1 else None
        self.rate = StepRate()

    def close(self) -> None:
        self.writer.close()

    def poll(self, *, at_end: bool = False) -> bool:
        """Take in what is new; True when more is waiting.

        Args:
            at_end: the run is over, so a last line without its newline is whole.
        """
        more_logs = self._follow_logs()
        if self.merged is not None:
            seen = {rank: index.seen(at_end=at_end) for rank, index in self.log_indexes.items()}
            self.merged.note(seen, time.time(), at_end=at_end)
        if at_end:
            self._pass_over_too_much()
        data = _read_plain(self.folder.metrics, self.metrics_offset, MOST_BYTES_A_POLL)
        now = time.time()
        full = len(data) == MOST_BYTES_A_POLL
        batch = parse_lines(data, now=now, last_step=self.last_step, at_end=at_end and not full)
        more = full and batch.consumed_bytes > 0
        self.metrics_offset += batch.consumed_bytes
        if batch.lines and not self.file_speaks:
            self.file_speaks = bool(batch.points or batch.events)
        read_stdout, more_stdout, read_events = 0, False, False
        if not self.file_speaks:
            read_events = self.events.read(batch, now, at_end=at_end)
            self.events_speak = self.events_speak or bool(batch.points)
        if self.printed and batch.points:
            self._forget_printed()
            return True
        if not (self.file_speaks or self.events_speak):
            read_stdout, more_stdout = self._read_stdout(batch, now, at_end=at_end)
        more = more or more_logs or read_events or more_stdout
        if batch.consumed_bytes or read_stdout or read_events:
            self._commit(batch)
        return more

    def _forget_printed(self) -> None:
        """Drop the points of printed lines: now the run itself says what its metrics are.

        What has just been read is left for the next poll.  The state is committed first: a follower that opens the
        columns with it cuts them itself.
        """
        seq = seq_before(self.columns, self.attempt.number)
        earlier = last_values(self.columns, until_seq=seq)
        speaks = {"file_speaks": self.file_speaks, "events_speak": self.events_speak}
        forgotten = {"columns": None, "printed": False, "last_step": None, "stepped": False}
        state = {**self.committed, **speaks, **forgotten}
        changes: dict[str, Any] = {"metric_seq": seq, "step_unit": STEP}
        changes["last_values"] = {name: storable(last.value) for name, last in earlier.items()}
        if self.parser.standing.unit != STEP and not self.attempt.job.spec_fields.get("total_steps"):
            changes["total_steps"] = None
        with transaction.atomic():
            mine = Attempt.objects.filter(pk=self.attempt.pk)
            mine.update(followed=state, last_step=None, first_step=None, first_step_at=None)
            Job.objects.filter(pk=self.job_id).update(**changes)
            wakeups.publish(f"metrics:{self.job_id}", seq)
        self.committed = state
        self.metrics_offset = state.get("metrics", 0)
        self.events.offsets = dict(state.get("event_files") or {})
        self.printed, self.last_step, self.stepped, self.rate = False, None, False, StepRate()
        self.writer.close()
        self.writer = MetricWriter(self.columns, self.attempt.number, self.since_s, None)

    def _pass_over_too_much(self) -> None:
        """A run that is over must not hold its devices for hours because of lines that nobody has read."""
        try:
            size = self.folder.metrics.stat(follow_symlinks=False).st_size
        except OSError:
            return
        passed = size - READ_AT_END_BYTES - self.metrics_offset
        if passed > MOST_AT_END_BYTES:
            self.metrics_offset += passed
            text = f"{passed / 2**30:,.1f} GiB of its metric lines were passed over: more than can be read at its end."
            lifecycle.remark(self.attempt.job, text, actor="agent")

    def _read_stdout(self, batch: ParsedBatch, now: float, *, at_end: bool) -> tuple[int, bool]:
        """Numbers that rank 0 prints: how many bytes were read, and whether more is waiting."""
        limit = MOST_LOG_BYTES_AT_END if at_end else MOST_LOG_BYTES
        chunk = read_log(self.folder.log(0), self.stdout_offset, limit)
        lines, carry = split_lines(chunk.data, at_returns=True)
        waiting = chunk.next_offset < chunk.size
        if at_end and carry and not waiting:
            lines, carry = [*lines, carry], b""
        if not lines:
            return 0, False
        for line in lines:
            self._read_printed(batch, line, now)
        read = chunk.next_offset - chunk.offset - len(carry)
        self.stdout_offset = chunk.offset + read
        # A chunk ends within a line, so the bytes that were read say nothing about the rest.
        return read, waiting

    def _read_printed(self, batch: ParsedBatch, line: bytes, now: float) -> None:
        found = self.parser.feed(line.decode(errors="replace"))
        if found is None:
            return
        batch.total_steps = found.total_steps or batch.total_steps
        if found.step is None:
            return
        batch.last_step = found.step
        self.printed = self.printed or bool(found.values)
        for name, value in found.values.items():
            if not math.isfinite(value) and is_loss(name):
                batch.first_nonfinite = batch.first_nonfinite or (name, found.step)
            batch.points.append(Point(name, found.step, now, value))

    def _commit(self, batch: ParsedBatch) -> None:
        if batch.last_step is not None:
            self.last_step = batch.last_step
        rate = self.rate.note(self.last_step, time.time(), batch.points, self._unit())
        self.writer.append(batch.points)
        columns = self.writer.flush()
        changes = self._changes(batch, rate, columns["seq"])
        state = {
            "metrics": self.metrics_offset,
            "stdout": self.stdout_offset,
            "printed": self.printed,
            "file_speaks": self.file_speaks,
            "event_files": self.events.offsets,
            "events_speak": self.events_speak,
            "parser": self.parser.carried,
            "columns": columns,
            "last_step": self.last_step,
            "stepped": self.stepped or self.last_step is not None,
        }
        with transaction.atomic():
            Attempt.objects.filter(pk=self.attempt.pk).update(followed=state, last_step=self.last_step)
            Job.objects.filter(pk=self.job_id).update(**changes)
            if not self.stepped and self.last_step is not None:
                self.stepped = True
                first = min((point.step for point in batch.points), default=self.last_step)
                restarts.note_first_step(self.attempt, first, timezone.now())
            self._remark(batch)
            wakeups.publish(f"metrics:{self.job_id}", columns["seq"])
            wakeups.publish(f"job:{self.job_id}")
            wakeups.publish("jobs")
        self.committed = {**state, "event_files": dict(self.events.offsets)}

    def _unit(self) -> str:
        """What the steps count."""
        return STEP if self.file_speaks or self.events_speak else self.parser.standing.unit

    def _changes(self, batch: ParsedBatch, rate: float | None, seq: int) -> dict[str, Any]:
        """The job's columns that follow from a batch."""
        job = Job.objects.only("last_values", "diverged_step", "spec_fields").get(pk=self.job_id)
        changes: dict[str, Any] = {"metric_seq": seq, "last_report_at": timezone.now()}
        if self.last_step is not None:
            changes["step"] = self.last_step
            changes["step_unit"] = self._unit()
        if batch.total_steps is not None and not job.spec_fields.get("total_steps"):
            changes["total_steps"] = min(batch.total_steps, INT64_LAST)
        if rate is not None:
            changes["steps_per_s"] = rate
        if batch.points:
            values = job.last_values
            for point in batch.points:
                if point.name in values or len(values) < MOST_LAST_VALUES:
                    values[point.name] = storable(point.value)
            changes["last_values"] = values
        if batch.first_nonfinite and job.diverged_step is None and is_loss(batch.first_nonfinite[0]):
            changes["diverged_step"] = batch.first_nonfinite[1]
        return changes

    def _remark(self, batch: ParsedBatch) -> None:
        """What the run says of itself that belongs into the job's history."""
        for event in batch.events[:20]:
            kind = event.get(EVENT)
            less = kind == LESS_MEMORY_EVENT
            text = plan_changes.note_less_memory(self.attempt, event) if less else remark_of(event)
            if text:
                actor = f"attempt {self.attempt.number}"
                lifecycle.remark(self.attempt.job, storable_text(text), actor=actor)
            if kind == PLAN_EVENT:
                plan_changes.keep_plan(self.attempt, event)
            elif kind == BALANCED_EVENT:
                plan_changes.note_balanced(self.attempt, event)
            step = event.get("step")
            if kind == RESUMED_EVENT and isinstance(step, int) and 0 <= step <= INT64_LAST:
                Attempt.objects.filter(pk=self.attempt.pk).update(resumed_from_step=step)
                restarts.note_resumed(self.attempt)
        if batch.first_nonfinite and is_loss(batch.first_nonfinite[0]):
            name, step = batch.first_nonfinite
            changed = Job.objects.filter(pk=self.job_id, diverged_step=step).exists()
            said = self.attempt.job.events.filter(reason__startswith=f"{name} became").exists()
            if changed and not said:
                text = f"{name} became NaN or infinite at step {step:,}: the training diverged."
                lifecycle.remark(self.attempt.job, text, actor="agent")

    def _follow_logs(self) -> bool:
        """Index logs that grew, and wake their viewers; True when more is waiting to be indexed."""
        more = False
        for rank in range(self.attempt.job.gpus):  # its folder is the run's: other names there are its own
            try:
                size = self.folder.log(rank).stat(follow_symlinks=False).st_size
            except OSError:
                continue
            if self.log_sizes.get(rank) == size:
                continue
            index = self.log_indexes.get(rank)
            if index is None:
                index = LineIndex(self.folder.log(rank), self.folder.log_index(rank))
                self.log_indexes[rank] = index
            before = index.offset
            index.extend(time.time())
            if before < index.offset < size:
                more = True
                continue
            self.log_sizes[rank] = size
            wakeups.publish(f"log:{self.job_id}:{self.attempt.number}:{rank}", size)
        return more


class StepRate:
    """Steps a second over the last half minute, from the steps seen."""

    def __init__(self) -> None:
        self.seen: deque[tuple[float, int]] = deque()
        self.told_at = 0.0

    def note(self, step: int | None, now: float, points: list[Point], unit: str = STEP) -> float | None:
        """Take the newest step; adds a point once a second unless the run reports a throughput itself."""
        if step is None:
            return None
        if self.seen and step < self.seen[-1][1]:  # went back after a resume
            self.seen.clear()
        if not self.seen or step > self.seen[-1][1]:
            self.seen.append((now, step))
        while len(self.seen) > 2 and now - self.seen[0][0] > RATE_WINDOW_S:
            self.seen.popleft()
        (first_at, first), (last_at, last) = self.seen[0], self.seen[-1]
        if last_at - first_at < 0.2:
            return None
        rate = (last - first) / (last_at - first_at)
        if now - self.told_at >= RATE_EVERY_S and not any(point.name.endswith("_per_s") for point in points):
            self.told_at = now
            points.append(Point(f"{unit}s_per_s", step, now, rate))
        return rate


def storable_text(text: str) -> str:
    """Text of a run as every database can keep it: no NUL, no half of a surrogate pair."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


def storable(value: float) -> float | str:
    """A number as the database keeps it; JSON has no word for NaN and infinities, so they become text (B47)."""
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def remark_of(event: dict[str, Any]) -> str:
    """The sentence for an event of the run; empty for those that need none."""
    kind = event.get(EVENT)
    if kind == FALLBACK_EVENT:
        to_step = event.get("to_step")
        to = "the beginning" if to_step is None else f"step {to_step}"
        return f"Fell back from checkpoint step {event.get('from_step')} to {to}: {event.get('reason')}"
    if kind == RESUMED_EVENT:
        return f"Resumed from step {event.get('step')}."
    if kind == CHECKPOINT_FAILED_EVENT:
        return (
            f"The checkpoint of step {event.get('step')} could not be written ({event.get('reason')}); "
            "the older ones stay."
        )
    if kind == PAUSED_EVENT:
        return (
            f"Paused at step {event.get('step')}: {event.get('failures')} checkpoints in a row could not be written "
            f"({event.get('reason')}). It goes on as soon as one can; make room, or cancel."
        )
    if kind == WENT_ON_EVENT:
        return f"Goes on from step {event.get('step')}: a checkpoint could be written after {event.get('paused_s')} s."
    if kind == UNUSED_EVENT:
        return (
            f"No gradient came for {event.get('parameters')} in step {event.get('step')}; "
            "find_unused_parameters is on from there. Set it to expect this from the start."
        )
    return ""


def _read_plain(path: Path, offset: int, limit_bytes: int) -> bytes:
    """Bytes of a regular file; a run that put something else in its place is not followed."""
    try:
        fd = open_plain(path)
    except OSError:
        return b""
    try:
        return os.pread(fd, limit_bytes, offset)
    finally:
        os.close(fd)
