"""Reads what a run writes: metric lines, numbers printed on stdout, growth of its logs.

Every line counts exactly once, whichever process is killed: the columns are made durable first, then the offset up to
which the file was read is committed together with everything derived from it (docs/protocol.md, rule 11).
"""

import logging
import math
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from berth.shared.metric_names import is_loss
from orchestrator.agent.follow_events import EventFiles
from orchestrator.agent.follow_records import RecordFiles
from orchestrator.agent.run_facts import NOT_OF_THE_SCRIPT, fact_of
from orchestrator.agent.run_values import StepRate, storable
from orchestrator.agent.telemetry.layout_reader import RATE, LineValues
from orchestrator.agent.telemetry.metric_lines import INT64_LAST, ParsedBatch, parse_lines
from orchestrator.agent.telemetry.printed_lines import LineParser
from orchestrator.agent.telemetry.progress import PERCENT, STEP
from orchestrator.agent.telemetry.sources import PRINTED, Sources
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle, plan_changes, progress
from orchestrator.jobs.launch.engines import engine_of, order_of
from orchestrator.live import wakeups
from orchestrator.models import Attempt, Job
from orchestrator.store.logs.chunks import read_log
from orchestrator.store.logs.lines import LineIndex
from orchestrator.store.logs.merged import MergedIndex
from orchestrator.store.logs.text import split_lines
from orchestrator.store.metrics.series import last_values
from orchestrator.store.metrics.writer import Committed, MetricWriter, Point, seq_before
from training.config.plan import PLAN_EVENT
from training.events import (
    BALANCED_EVENT,
    EVENT,
    LESS_MEMORY_EVENT,
    RESUMED_EVENT,
)

logger = logging.getLogger(__name__)

MOST_BYTES_A_POLL = 1 << 20
MOST_AT_END_BYTES = 1 << 30  # unread when the run is over; above this only the newest are read
READ_AT_END_BYTES = 256 << 20
MOST_LOG_BYTES, MOST_LOG_BYTES_AT_END = 256 << 10, 1 << 20  # of rank 0's log per poll
MOST_LAST_VALUES = 200
EVENT_FILES = "tensorboard"  # the tracker whose values are in event files as well


class FollowState(TypedDict, total=False):
    """How far an attempt's files were read; stored in ``Attempt.followed``."""

    metrics: int  # offset, as are the next ones
    parts: dict[str, int]  # of the metrics of other servers of the same run
    stdout: int
    event_files: dict[str, int]
    file_speaks: bool
    events_speak: bool
    record_files: dict[str, Any]
    earlier_records: dict[str, int]
    events_come_as_lines: bool
    printed: bool
    sources: dict[str, str]
    tracked_step: int | None
    length: int | None
    parser: Mapping[str, Any]
    columns: Committed | None
    last_step: int | None
    stepped: bool


class JobColumns(TypedDict, total=False):
    """The columns of ``Job`` that follow from a run's reports."""

    metric_seq: int
    last_report_at: datetime
    step: int
    step_unit: str
    total_steps: int | None
    steps_per_s: float
    last_values: dict[str, float | str]
    diverged_step: int


class Follower:
    """Reads one attempt's files from the last committed offsets; an attempt has one follower at a time."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.job_id = attempt.job_id
        job_folder = settings.HOME.job(attempt.job_id)
        self.folder = job_folder.attempt(attempt.number)
        self.committed: FollowState = attempt.followed
        state = self.committed
        self.metrics_offset: int = state.get("metrics", 0)
        self.part_offsets: dict[str, int] = dict(state.get("parts", {}))
        self.stdout_offset: int = state.get("stdout", 0)
        # If the metrics file speaks, stdout is not parsed: the training library prints for people.
        self.file_speaks: bool = state.get("file_speaks", attempt.job.spec_fields.get("kind") == "model")
        self.parser = LineParser()
        if "parser" in state:
            self.parser.carry_on(state["parser"])
        else:
            self.parser.progress.first_epoch = _first_epoch(attempt)
        self.columns = job_folder.metrics
        self.since_s = (attempt.launched_at or attempt.created_at).timestamp()
        self.writer = MetricWriter(self.columns, attempt.number, self.since_s, state.get("columns"))
        self.has_stumbled = False
        self.printed: bool = state.get("printed", False)  # some points come from printed lines
        self.events = EventFiles(job_folder, self.since_s, state.get("event_files"))
        self.events_speak: bool = state.get("events_speak", False)  # some points come from event files
        # Read only where nothing else tells any metric.
        self.records = RecordFiles(
            job_folder, self.since_s, state.get("record_files"), state.get("earlier_records")
        )
        # The script's TensorBoard writer is read as it is called, so its files, which are later, are not.
        self.events_come_as_lines: bool = state.get("events_come_as_lines", False)
        self.sources = Sources(state.get("sources", {}))
        self.tracked_step: int | None = state.get("tracked_step")  # the newest of trackers
        # What the trainer told of the whole training; a bar may count what is left after a resume.
        self.length: int | None = state.get("length")
        self.last_step: int | None = state.get("last_step")
        self.stepped: bool = state.get("stepped", self.last_step is not None)
        self.log_sizes: dict[int, int] = {}
        self.log_indexes: dict[int, LineIndex] = {}
        self.merged = MergedIndex(self.folder.merged_index) if attempt.job.log_count > 1 else None
        self.rate = StepRate()

    def close(self) -> None:
        self.writer.close()

    def _read(self, name: str, offset: int, limit_bytes: int) -> bytes:
        return engine_of(self.attempt).read(order_of(self.attempt), name, offset, limit_bytes)

    def poll(self, *, at_end: bool = False) -> bool:
        """Read what is new; True if more is waiting.

        Args:
            at_end: the run is over, so a last line without a newline is complete.
        """
        more_logs = self._follow_logs()
        if self.merged is not None:
            seen = {rank: index.seen(at_end=at_end) for rank, index in self.log_indexes.items()}
            self.merged.note(seen, time.time(), at_end=at_end)
        if at_end:
            self._pass_over_too_much()
        data = self._read(self.folder.metrics.name, self.metrics_offset, MOST_BYTES_A_POLL)
        now = time.time()
        full = len(data) == MOST_BYTES_A_POLL
        batch = parse_lines(data, now=now, last_step=self.last_step, at_end=at_end and not full)
        more = full and batch.consumed_bytes > 0
        self.metrics_offset += batch.consumed_bytes
        read_parts, more_parts = self._read_parts(batch, now, at_end=at_end)
        if batch.lines and not self.file_speaks:
            self.file_speaks = bool(batch.points) or any(
                each.get(EVENT) not in NOT_OF_THE_SCRIPT for each in batch.events
            )
        self.events_come_as_lines = self.events_come_as_lines or EVENT_FILES in batch.trackers
        self.length = batch.length or self.length
        read_stdout, more_stdout, read_events = 0, False, False
        if not (self.file_speaks or self.events_come_as_lines):
            read_events = self.events.read(batch, now, at_end=at_end)
            self.events_speak = self.events_speak or bool(batch.points)
        if (self.printed or self.records.speak) and batch.points:
            self._forget_printed()
            return True
        self.sources.claim(batch.points)
        if not (self.file_speaks or self.events_speak):
            read_stdout, more_stdout = self._read_stdout(batch, now, at_end=at_end)
        self._add_tracked(batch)
        read_records = self._read_records(batch, now, at_end=at_end and not more_stdout)
        self._tell_given_up()
        more = more or more_logs or read_events or more_stdout or more_parts or self.records.more
        if batch.consumed_bytes or read_stdout or read_events or read_parts or read_records:
            self._commit(batch)
        return more

    def _read_parts(self, batch: ParsedBatch, now: float, *, at_end: bool) -> tuple[int, bool]:
        """Add what ranks on other servers of the same run report; bytes read, and whether more is waiting."""
        read, more = 0, False
        for node in self.attempt.nodes[1:]:
            name = f"{self.folder.parts.name}/{node}/{self.folder.metrics.name}"
            offset = self.part_offsets.get(node, 0)
            data = self._read(name, offset, MOST_BYTES_A_POLL)
            full = len(data) == MOST_BYTES_A_POLL
            part = parse_lines(data, now=now, last_step=self.last_step, at_end=at_end and not full)
            batch.points += part.points
            batch.tracked += part.tracked
            batch.trackers |= part.trackers
            batch.lines += part.lines
            batch.first_nonfinite = batch.first_nonfinite or part.first_nonfinite
            self.part_offsets[node] = offset + part.consumed_bytes
            read += part.consumed_bytes
            more = more or (full and part.consumed_bytes > 0)
        return read, more

    def _add_tracked(self, batch: ParsedBatch) -> None:
        """Add what only trackers tell; their steps count if nothing else tells any."""
        step = self.sources.add_tracked(batch)
        if step is None:
            return
        self.tracked_step = max(step, self.tracked_step or 0)
        if not (self.file_speaks or self.events_speak) and self.parser.progress.step is None:
            batch.last_step = self.tracked_step
        for _, point in batch.tracked:
            if not math.isfinite(point.value) and is_loss(point.name):
                batch.first_nonfinite = batch.first_nonfinite or (point.name, point.step)

    def _read_records(self, batch: ParsedBatch, now: float, *, at_end: bool) -> bool:
        """Add the rows of files in which the script keeps its training, if nothing else tells any metric."""
        is_reported = self.file_speaks or self.events_speak or self.events_come_as_lines
        is_printed = not all(name.endswith(RATE) for name in self.sources.by_name)  # a bar alone has a rate
        if is_reported or (is_printed and not self.records.speak) or self.attempt.job.has_socket:
            return False
        counted_before = self._counts_records()
        is_new = self.records.read(batch, self.sources, now, at_end=at_end)
        if self.records.earlier != self.committed.get("earlier_records", {}):
            self._keep_earlier_records()
        if is_new and self._counts_records():
            batch.last_step = self.records.step
            # What was printed so far counts something else.
            if not counted_before and self.parser.progress.step is not None:
                batch.total_steps, self.rate = None, StepRate()
        return is_new

    def _tell_given_up(self) -> None:
        """Say in the job's history which files were given up, once for each."""
        for name, reason in {
            **self.events.unread.take_given_up(),
            **self.records.unread.take_given_up(),
        }.items():
            if not self.attempt.job.events.of(Happened.FILE_UNREAD, file=name).exists():
                what = fact(Happened.FILE_UNREAD, file=name, reason=reason)
                lifecycle.remark(self.attempt.job, what, actor="agent")

    def _keep_earlier_records(self) -> None:
        """Store at once where files of before the attempt end, because they grow from now on."""
        self.committed = {**self.committed, "earlier_records": self.records.earlier}
        Attempt.objects.filter(pk=self.attempt.pk).update(followed=self.committed)

    def _counts_records(self) -> bool:
        """Whether the step is that of the files: no printed line names one of their kind."""
        progress = self.parser.progress
        return self.records.step is not None and (progress.step is None or progress.unit != self.records.unit)

    def _forget_printed(self) -> None:
        """Drop the points of printed lines and of files, because the run now reports its metrics itself.

        What was just read is left for the next poll.  The state is committed first: a follower that opens the columns
        with this state truncates them itself.
        """
        seq = seq_before(self.columns, self.attempt.number)
        earlier = last_values(self.columns, until_seq=seq)
        state: FollowState = {
            **self.committed,
            "file_speaks": self.file_speaks,
            "events_speak": self.events_speak,
        }
        state |= {"columns": None, "printed": False, "last_step": None, "stepped": False}
        state |= {"record_files": {}}
        state |= {"sources": {}, "tracked_step": None}
        changes: JobColumns = {"metric_seq": seq, "step_unit": STEP}
        changes["last_values"] = {name: storable(last.value) for name, last in earlier.items()}
        if self.parser.progress.unit != STEP and not self.attempt.job.spec_fields.get("total_steps"):
            changes["total_steps"] = None
        with transaction.atomic():
            mine = Attempt.objects.filter(pk=self.attempt.pk)
            mine.update(followed=state, last_step=None, first_step=None, first_step_at=None)
            Job.objects.filter(pk=self.job_id).update(**changes)
            wakeups.publish(f"metrics:{self.job_id}", seq)
        self.committed = state
        self.metrics_offset = state.get("metrics", 0)
        self.part_offsets = dict(state.get("parts", {}))
        self.events.offsets = dict(state.get("event_files") or {})
        self.printed, self.last_step, self.stepped, self.rate = False, None, False, StepRate()
        self.sources, self.tracked_step = Sources({}), None
        self.records.files = {}
        self.writer.close()
        self.writer = MetricWriter(self.columns, self.attempt.number, self.since_s, None)

    def _pass_over_too_much(self) -> None:
        """Skip unread lines if there are too many: a run that is over must not hold its devices for hours."""
        try:
            size = self.folder.metrics.stat(follow_symlinks=False).st_size
        except OSError:
            return
        passed = size - READ_AT_END_BYTES - self.metrics_offset
        if passed > MOST_AT_END_BYTES:
            self.metrics_offset += passed
            what = fact(Happened.LINES_PASSED_OVER, size_bytes=passed)
            lifecycle.remark(self.attempt.job, what, actor="agent")

    def _read_stdout(self, batch: ParsedBatch, now: float, *, at_end: bool) -> tuple[int, bool]:
        """Read numbers that rank 0 prints; returns how many bytes were read and whether more is waiting."""
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
        # A chunk ends within a line, so the number of bytes read does not tell whether more is waiting.
        return read, waiting

    def _read_printed(self, batch: ParsedBatch, line: bytes, now: float) -> None:
        parsed = self._parse(line.decode(errors="replace"))
        if parsed is None:
            return
        if self.records.step is not None and parsed.unit != self.records.unit:
            return  # the files count something else
        batch.total_steps = parsed.total_steps or batch.total_steps
        if parsed.step is None:
            return
        if parsed.moves:
            batch.last_step = parsed.step
        values = {name: value for name, value in parsed.values.items() if self.sources.admits(PRINTED, name)}
        self.printed = self.printed or bool(values)
        for name, value in values.items():
            if not math.isfinite(value) and is_loss(name):
                batch.first_nonfinite = batch.first_nonfinite or (name, parsed.step)
            batch.points.append(Point(name, parsed.step, now, value))

    def _parse(self, line: str) -> LineValues | None:
        """What a printed line tells; one that our parser stumbles over tells nothing, and the next ones are read."""
        try:
            return self.parser.feed(line)
        except Exception:
            if not self.has_stumbled:  # a training prints alike lines by the thousand
                logger.exception("A printed line of %s cannot be read", self.attempt)
            self.has_stumbled = True
            return None

    def _commit(self, batch: ParsedBatch) -> None:
        if batch.last_step is not None:
            self.last_step = batch.last_step
        rate = self.rate.note(self.last_step, time.time(), batch.points, self._unit())
        self.writer.append(batch.points)
        columns = self.writer.flush()
        changes = self._changes(batch, rate, columns["seq"])
        state: FollowState = {
            "metrics": self.metrics_offset,
            "parts": dict(self.part_offsets),
            "stdout": self.stdout_offset,
            "printed": self.printed,
            "file_speaks": self.file_speaks,
            "event_files": self.events.offsets,
            "events_speak": self.events_speak,
            "record_files": self.records.as_json(),
            "earlier_records": self.records.earlier,
            "events_come_as_lines": self.events_come_as_lines,
            "sources": self.sources.by_name,
            "tracked_step": self.tracked_step,
            "length": self.length,
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
                progress.note_first_step(self.attempt, first, timezone.now())
            self._remark(batch)
            wakeups.publish(f"metrics:{self.job_id}", columns["seq"])
            wakeups.publish(f"job:{self.job_id}")
            wakeups.publish("jobs")
        self.committed = {**state, "event_files": dict(self.events.offsets)}

    def _unit(self) -> str:
        """The unit of the steps."""
        if self.file_speaks or self.events_speak:
            return STEP
        return self.records.unit if self._counts_records() else self.parser.progress.unit

    def _changes(self, batch: ParsedBatch, rate: float | None, seq: int) -> JobColumns:
        """The values of the job's columns after a batch."""
        columns = ("last_values", "diverged_step", "spec_fields", "step_unit")
        job = Job.objects.only(*columns).get(pk=self.job_id)
        changes: JobColumns = {"metric_seq": seq, "last_report_at": timezone.now()}
        if self.last_step is not None:
            changes["step"] = self.last_step
            changes["step_unit"] = self._unit()
        total = self.length or batch.total_steps
        if job.spec_fields.get("total_steps"):
            pass  # its owner's
        elif total is not None:
            changes["total_steps"] = min(total, INT64_LAST)
        elif self._unit() != job.step_unit and (self._counts_records() or job.step_unit == PERCENT):
            changes["total_steps"] = None  # it was of what is no longer counted
        if rate is not None:
            changes["steps_per_s"] = rate
        if batch.points:
            values = job.last_values
            newest = {point.name: point.value for point in batch.points}
            for name, value in newest.items():
                if name in values or len(values) < MOST_LAST_VALUES:
                    values[name] = storable(value)
            changes["last_values"] = values
        if batch.first_nonfinite and job.diverged_step is None and is_loss(batch.first_nonfinite[0]):
            changes["diverged_step"] = batch.first_nonfinite[1]
        return changes

    def _remark(self, batch: ParsedBatch) -> None:
        """Record the run's events that belong to the job's history."""
        for event in batch.events[:20]:
            kind = event.get(EVENT)
            less = kind == LESS_MEMORY_EVENT
            what = plan_changes.note_less_memory(self.attempt, event) if less else fact_of(event)
            if what:
                lifecycle.remark(self.attempt.job, what, actor=f"attempt {self.attempt.number}")
            if kind == PLAN_EVENT:
                plan_changes.keep_plan(self.attempt, event)
            elif kind == BALANCED_EVENT:
                plan_changes.note_balanced(self.attempt, event)
            step = event.get("step")
            if kind == RESUMED_EVENT and isinstance(step, int) and 0 <= step <= INT64_LAST:
                Attempt.objects.filter(pk=self.attempt.pk).update(resumed_from_step=step)
                progress.note_resumed(self.attempt)
        if batch.first_nonfinite and is_loss(batch.first_nonfinite[0]):
            name, step = batch.first_nonfinite
            changed = Job.objects.filter(pk=self.job_id, diverged_step=step).exists()
            what = fact(Happened.DIVERGED, name=name, step=step)
            is_known = self.attempt.job.events.of(what.code, name=what.facts["name"]).exists()
            if changed and not is_known:
                lifecycle.remark(self.attempt.job, what, actor="agent")

    def _follow_logs(self) -> bool:
        """Index logs that grew and wake their viewers; True if more is waiting to be indexed."""
        more = False
        for rank in range(self.attempt.job.log_count):  # other files in the folder belong to the run
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


def _first_epoch(attempt: Attempt) -> int:
    """Whether the job's epochs begin at 0 or 1, as its attempt before found: a resumed one begins in the middle."""
    earlier = Attempt.objects.filter(job_id=attempt.job_id, number__lt=attempt.number).order_by("-number")
    for state in earlier.values_list("followed", flat=True)[:1]:
        if state.get("parser", {}).get("standing", {}).get("first_epoch") == 0:
            return 0
    return 1
