"""berth watch and berth top: a live picture in the terminal."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from berth.cli import chart
from berth.cli.choosing import UNFINISHED, exit_status
from berth.cli.following import detaching, follow_log, say_end, stdout_is_terminal
from berth.cli.printing import safe, show_json_line
from berth.cli.tables import (
    headline_value,
    job_line,
    note,
    on_devices,
    overview,
    progress_text,
    state_text,
    terminal,
)
from berth.client import Berth, Job, NotFound, Series, Unreachable
from berth.shared import words
from berth.shared.metric_names import in_order, main_metric
from berth.shared.words import server_command

EVERY_S = 1.0
PATIENCE_S = 60.0
KEPT_LINES = 200
TAIL_BYTES = 16 * 1024
LEAST_CHART_LINES, MOST_CHART_LINES = 5, 16


class Follower:
    """The last lines of a job's log, read incrementally."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.attempt, self.offset = 0, 0
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._open = ""  # a line without its newline yet

    def read_on(self) -> None:
        if self.job.attempt_count != self.attempt:
            self.attempt, self.offset = self.job.attempt_count, -TAIL_BYTES
        if not self.attempt:
            return
        for part in self.job.log(
            rank=self.rank, attempt=self.attempt, offset=self.offset, patience_s=PATIENCE_S
        ):
            self.offset = part.next_offset
            *whole, self._open = (self._open + part.text).split("\n")
            self.lines.extend(whole)
        self.offset = max(0, self.offset)

    def last(self, count: int) -> list[str]:
        """Return the last lines; for a progress bar that rewrites its line, its newest state."""
        lines = [*self.lines, self._open] if self._open else list(self.lines)
        return [safe(line.rstrip("\r").rpartition("\r")[2]) for line in lines[-count:]] if count else []


def watch(job: Job, *, metric: str | None, rank: int, as_json: bool) -> int:
    """Show chart and log until the job has ended; return the exit status for the shell."""
    if as_json:
        return _watch_as_json(job)
    if not stdout_is_terminal():
        return follow_log(job, rank=rank)
    console = terminal()
    follower = Follower(job, rank)
    with detaching(job), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            job.refresh(patience_s=PATIENCE_S)
            follower.read_on()
            live.update(_screen(job, follower, metric, console), refresh=True)
            if job.ended:
                break
            time.sleep(EVERY_S)
    for each in _charts(job, metric, console.width, MOST_CHART_LINES):
        console.print(each)
    for line in follower.last(10):
        console.print(Text(line, "dim"))
    say_end(job)
    return exit_status(job)


class Look(NamedTuple):
    """What the overview shows."""

    devices: list[Any]
    jobs: list[Any]
    why_none: str  # the list of devices is empty
    room: str  # what the person could start now


def _room(berth: Berth) -> str:
    try:
        return str(berth.get("/capacity")["sentence"])
    except NotFound:  # an older server
        return ""


def top(berth: Berth, *, once: bool, as_json: bool) -> None:
    """Show devices and queue, refreshed every second until Ctrl-C."""

    def look() -> Look:
        devices = berth.devices()
        why_none = "" if devices else _agents_word(berth)
        jobs = list(berth.jobs(state=UNFINISHED, limit=100))
        return Look(devices, jobs, why_none, _room(berth) if devices else "")

    if as_json or once or not stdout_is_terminal():
        _top_lines(look, once=once or not as_json, as_json=as_json)
        return
    console = terminal()
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(_overview_or_problem(look, console.width), refresh=True)
                time.sleep(EVERY_S)
    except KeyboardInterrupt:
        return


def _agents_word(berth: Berth) -> str:
    """Describe the state of the agent, which lists the devices."""
    try:
        detail = berth.get("/health/ready")["dependencies"]["agent"]["detail"]
    except Unreachable:  # not ready
        detail = f"does not report; it starts with {server_command('up')}"
    return f"The agent {detail}"


def _top_lines(look: Callable[[], Look], *, once: bool, as_json: bool) -> None:
    while True:
        seen = look()
        if as_json:
            show_json_line(
                {"devices": [each.json for each in seen.devices], "jobs": [each.json for each in seen.jobs]}
            )
        else:
            console = terminal()
            console.print(Group(*overview(seen.devices, seen.jobs, console.width, seen.why_none, seen.room)))
        if once:
            return
        time.sleep(EVERY_S)


def _overview_or_problem(look: Callable[[], Look], width: int) -> RenderableType:
    """While the server restarts, show a sentence instead of a stale picture."""
    try:
        seen = look()
        parts = overview(seen.devices, seen.jobs, width, seen.why_none, seen.room)
        return Group(*parts, Text(), Text("Ctrl-C leaves.", "dim"))
    except Unreachable as error:
        return Text(f"{error}\nRetrying; Ctrl-C quits.", "yellow")


def _screen(job: Job, follower: Follower, metric: str | None, console: Console) -> RenderableType:
    head = [_head(job), *([Text(safe(note(job)), "dim")] if note(job) else [])]
    room = console.height - len(head) - 3
    charts = _charts(job, metric, console.width, max(LEAST_CHART_LINES, min(MOST_CHART_LINES, room // 2)))
    used = sum(each.plain.count("\n") + 1 for each in charts)
    log = [Text(line, no_wrap=True, overflow="ellipsis") for line in follower.last(max(3, room - used))]
    foot = Text(f"Ctrl-C quits; the job continues.   rank {follower.rank}", "dim")
    return Group(*head, *charts, Text(), *log, foot)


def _head(job: Job) -> Text:
    text = Text.assemble((job_line(job), "bold"), "  ", state_text(job.state))
    attempt = f"attempt {job.attempt_count}" if job.attempt_count > 1 else ""
    on = on_devices(job) if job.attempt_count and not job.ended else ""
    speed = job.progress.steps_per_s
    is_share = job.progress.json.get("unit") == "percent"  # its speed says less than its end
    rate = f"{words.value(speed)} steps/s" if speed and not is_share else ""
    for part in (attempt, on, progress_text(job), headline_value(job), rate, words.duration(job.run_s)):
        text.append(f"  {part}" if part else "")
    return text


def _charts(job: Job, metric: str | None, width: int, height: int) -> list[Text]:
    """Draw the chosen metric, else the most important one; nothing before the first number."""
    name = metric or main_metric(job.last_values)
    if name is None or not job.metric_seq:
        return []
    points = max(2, 2 * (width - chart.LABEL_WIDTH - 1))
    series = job.metrics([name], max_points=points, patience_s=PATIENCE_S).get(name)
    if series is None:
        known = ", ".join(safe(each) for each in in_order(job.last_values))
        return [Text(f"There is no metric {metric!r}; there are {known}.", "yellow")]
    return [draw_series(name, series, width, height)]


def draw_series(name: str, series: Series, width: int, height: int) -> Text:
    """Draw one metric with its title, and say what the chart leaves out."""
    buckets = chart.buckets_of(series.x, series.y, series.y_min, series.y_max)
    shown = "" if series.total <= len(series.x) else f", shown as {words.plural(len(series.x), 'bucket')}"
    text = Text(f"{safe(name)}  {words.plural(series.total, 'point')}{shown}", "dim")
    if series.nonfinite:
        step, kind = series.nonfinite[0]
        text.append(f"  first {kind} at step {step:,.0f}", "red")
    for line in chart.draw(buckets, width=width, height=height):
        text.append(f"\n{line[: chart.LABEL_WIDTH]}", "dim")
        text.append(line[chart.LABEL_WIDTH :], "cyan")
    return text


def _watch_as_json(job: Job) -> int:
    """Print a line for each change of the job."""
    before = None
    with detaching(job):
        while True:
            job.refresh(patience_s=PATIENCE_S)
            now = (job.state, job.attempt_count, job.metric_seq, job.progress.json)
            if now != before:
                show_json_line(job.json)
                before = now
            if job.ended:
                return exit_status(job)
            time.sleep(EVERY_S)
