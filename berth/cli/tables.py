"""Jobs and devices as tables and sentences on a terminal."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from berth.cli.printing import safe
from berth.client import Device, Job
from berth.shared import words
from berth.shared.metric_names import main_metric

WIDE = 200  # columns of a pipe or file, which should not lose text
BAR = 12
FOREIGN_SHOWN_BYTES = 64 * words.MIB  # less is most likely a display server
LONGEST_NAME = 28
ROOM_FOR_MODELS, ROOM_FOR_BARS = 100, 60  # columns
# Columns that need a wide terminal; the others are always shown.
ROOM_FOR = {"devices": 50, "progress": 60, "last": 76, "time": 90, "note": 130}
LEAST_WIDTH = {"id": 8, "state": 11, "job": 10}
# As in design/ux.md, section 8: word, shape and colour; colour never alone.
SHAPES = {
    "queued": ("◷", "cyan"),
    "held": ("‖", "yellow"),
    "starting": ("◐", "cyan"),
    "running": ("▶", "green"),
    "stopping": ("□", "yellow"),
    "backoff": ("↻", "yellow"),
    "unknown": ("?", "yellow"),
    "succeeded": ("✓", "green"),
    "failed": ("✗", "red"),
    "timed_out": ("⧗", "red"),
    "cancelled": ("⊘", "dim"),
}


def terminal() -> Console:
    """Standard output; colour only on a terminal and never with NO_COLOR, which Rich honours itself."""
    width = None if sys.stdout.isatty() else WIDE
    return Console(width=width, markup=False, highlight=False, emoji=False)


def state_text(state: str) -> Text:
    shape, style = SHAPES.get(state, ("?", "yellow"))
    return Text(f"{shape} {state}", style)


def grid(*headers: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_header=any(headers))
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def job_table(jobs: Sequence[Job], width: int) -> RenderableType:
    """A line for each job, with a note beside it, or below on a narrow terminal."""
    several = len({job.owner for job in jobs}) > 1
    beside = width >= ROOM_FOR["note"] and any(note(job) for job in jobs)
    columns = ["id", "state", "job", "who", "devices", "progress", "last", "time", "note"]
    wanted = {"who": several, "note": beside}
    shown = [name for name in columns if width >= ROOM_FOR.get(name, 0) and wanted.get(name, True)]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in shown:
        table.add_column(
            "" if name == "note" else name,
            no_wrap=name != "note",
            overflow="ellipsis",
            min_width=LEAST_WIDTH.get(name),
        )
    for job in jobs:
        cells = _cells(job)
        table.add_row(*(cells[name] for name in shown))
    if beside:
        return table
    notes = [Text(f"{job.short_id} {safe(note(job))}", "dim") for job in jobs if note(job)]
    return Group(table, *notes)


def _cells(job: Job) -> dict[str, Text]:
    return {
        "id": Text(job.short_id),
        "state": state_text(job.state),
        "job": Text(_cut(job.name)),
        "who": Text(safe(job.owner)),
        "devices": Text(devices_text(job)),
        "progress": Text(progress_text(job)),
        "last": Text(headline_value(job)),
        "time": Text(_time(job)),
        "note": Text(safe(note(job)), "dim"),
    }


def job_line(job: Job) -> str:
    """Name and short id, as sentences name a job."""
    return f"{safe(job.name)} {job.short_id}"


def note(job: Job) -> str:
    """The most important fact about a job now, or an empty text."""
    if job.explanation is not None:
        return job.explanation.sentence
    if job.state in {"failed", "timed_out"}:
        return job.exit_detail
    if job.diverged_step is not None:
        return f"loss became NaN or infinite at step {job.diverged_step:,}"
    if job.state == "running" and job.progress.eta_s is not None:
        return f"done {words.relative(max(1, job.progress.eta_s))}, at {clock(job.progress.eta_s)}"
    return job.reason if job.state in {"stopping", "unknown"} else ""


def on_devices(job: Job) -> str:
    """ "on device 3", "on devices 0,1"."""
    indices = devices_text(job)
    return f"on device{'s' if ',' in indices else ''} {indices}"


def devices_text(job: Job) -> str:
    """The devices that a job has, else how many it waits for."""
    if job.attempt and job.state in {"starting", "running", "stopping", "unknown"}:
        return ",".join(str(each["index"]) for each in job.attempt.devices)
    each = f" x {job.gpu_memory_gib:g} GiB" if job.gpu_memory_gib else ""
    return f"{'' if job.ended else 'wants '}{job.gpus}{each}"


def progress_text(job: Job) -> str:
    progress = job.progress
    if progress.step is None:
        return ""
    share = f"{progress.fraction:.0%} " if progress.fraction is not None else ""
    if share and progress.json.get("unit") == "percent":
        return share.strip()
    total = f"/{progress.total_steps:,}" if progress.total_steps else ""
    unit = progress.json.get("unit", "step")  # servers before this field count steps
    return f"{share}{unit} {progress.step:,}{total}"


def headline_value(job: Job) -> str:
    """The newest loss, else another measure, else the first metric."""
    name = main_metric(job.last_values)
    if name is None:
        return ""
    value = job.last_values[name]
    shown = words.NOT_FINITE.get(job.nonfinite.get(name, ""), "?") if value is None else words.value(value)
    return f"{safe(name)} {shown}"


def wall(devices: Sequence[Device], width: int) -> RenderableType:
    """A line for each device, two on a narrow terminal: readings, then holders."""
    if width < ROOM_FOR_BARS:
        return Text("\n").join(
            Text("\n   ").join([Text("  ").join(_reading_texts(device, width)), holders_text(device)])
            for device in devices
        )
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for _ in range(4):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for device in devices:
        table.add_row(*_reading_texts(device, width), holders_text(device))
    return table


def _reading_texts(device: Device, width: int) -> list[Text]:
    """Name, memory, utilisation and heat of a device; model and memory bar on a wide terminal."""
    label = Text(safe(device.label), "bold")
    if width >= ROOM_FOR_MODELS and not device.label.startswith(device.name):
        label.append(f"  {safe(device.name)}", "dim not bold")
    reading = device.reading
    if reading is None:
        return [label, Text(), Text(), Text()]
    style = "dim" if reading.stale else ""
    drawn = f"{bar(reading.used_bytes, reading.total_bytes)} " if width >= ROOM_FOR_BARS else ""
    memory = Text(f"{drawn}{words.gib(reading.used_bytes)}/{words.gib(reading.total_bytes)} GiB", style)
    use = "" if reading.utilization_percent is None else f"{reading.utilization_percent:.0f} %"
    return [label, memory, Text(use, style), Text(heat_text(device), style)]


def heat_text(device: Device) -> str:
    reading = device.reading
    if reading is None:
        return ""
    parts = [] if reading.temperature_c is None else [f"{reading.temperature_c:.0f} °C"]
    return "  ".join(parts + ([] if reading.power_w is None else [f"{reading.power_w:.0f} W"]))


def holders_text(device: Device) -> Text:
    """The holders of a device: jobs with their owners, external processes, else "free"."""
    text = Text()
    if not device.usable:
        why = device.health_reason if device.health != "ok" else ""
        text.append(f"{device.state if device.state != 'enabled' else device.health}", "yellow")
        text.append(f" {safe(why)}  " if why else "  ")
    for holder in device.holders:
        share = f", {words.size(holder.memory_bytes)}" if holder.memory_bytes else ""
        text.append(f"{safe(holder.name)} {holder.short_id}", "bold")
        text.append(f" ({safe(holder.owner)}, rank {holder.rank}{share})  ")
    reading = device.reading
    if reading is not None and reading.foreign_bytes > FOREIGN_SHOWN_BYTES:
        strangers = ", ".join(
            f"{safe(each.command or str(each.pid))[:40]} of {safe(each.user or 'somebody')}"
            for each in reading.processes
            if each.job is None
        )
        text.append(f"! external: {words.size(reading.foreign_bytes)} {strangers}  ", "yellow")
    elif is_free(device):
        text.append("free", "green")
        text.append("  ")
    elif not device.holders and device.usable:
        text.append(f"{safe(device.availability.sentence)}  ", "yellow")
    if reading is not None and reading.stale:
        text.append(f"last read {words.relative(_ago(reading.taken_at))}", "yellow")
    text.rstrip()
    return text


def box_line(devices: Sequence[Device], jobs: Sequence[Job], room: str = "") -> str:
    """One line: free devices, running jobs, waiting jobs, next start.

    Args:
        room: what the server says of the free devices; empty: an older server, whose devices are counted here.
    """
    room = room or _count_room(devices)
    running = sum(job.state in {"starting", "running", "stopping", "unknown"} for job in jobs)
    waiting = [job for job in jobs if job.waits]
    line = f"{room}   {running} running   {len(waiting)} waiting"
    now = datetime.now(tz=UTC)
    starts = [
        (earliest, moment(job.explanation.start_latest))
        for job in waiting
        if job.explanation and (earliest := moment(job.explanation.start_earliest))
    ]
    if starts:
        line += f", next start {words.start_range(*min(starts, key=lambda pair: pair[0]), now)}"
    return line


def _count_room(devices: Sequence[Device]) -> str:
    states = [device.availability.state for device in devices]
    noun = "device" if len(devices) == 1 else "devices"
    kept, closed = states.count("kept"), states.count("closed")
    return f"{states.count('free')} {words.capacity(len(devices), noun, kept=kept, closed=closed)}"


def is_free(device: Device) -> bool:
    return device.availability.state == "free"


def overview(
    devices: Sequence[Device], jobs: Sequence[Job], width: int, why_none: str = "", room: str = ""
) -> list[RenderableType]:
    """The devices, or why the list is empty, then waiting jobs in the order of their starts, then running ones."""
    parts: list[RenderableType] = [Text(box_line(devices, jobs, room), "bold")]
    if devices:
        parts += [Text(), wall(devices, width)]
    elif why_none:
        parts += [Text(), Text(safe(why_none), "yellow")]
    waiting = sorted((job for job in jobs if job.waits), key=_line_up)
    running = [job for job in jobs if not job.waits]
    for title, group in (("Waiting", waiting), ("Running", running)):
        if group:
            parts += [Text(), Text(title, "dim"), job_table(group, width)]
    if not jobs:
        parts += [Text(), Text("None of your jobs runs or waits. Submit one with: berth run train.py", "dim")]
    return parts


def bar(part: float, whole: float) -> str:
    """A bar of fixed width; a value above 0 shows at least a trace."""
    share = min(1.0, part / whole) if whole else 0.0
    filled = round(share * BAR)
    return (
        "█" * filled
        + ("▏" if not filled and share > 0.005 else "░" * (filled < BAR))
        + "░" * (BAR - filled - 1)
    )


def clock(in_s: float) -> str:
    """The local time in ``in_s`` seconds, with the day if it is not today."""
    now = datetime.now().astimezone()
    then = datetime.fromtimestamp(now.timestamp() + in_s).astimezone()
    return then.strftime("%H:%M" if then.date() == now.date() else "%a %H:%M")


def moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _ago(then: datetime) -> float:
    """Seconds until a moment of the past, so never above 0: this machine's clock may be behind the server's."""
    return min(0.0, (then - datetime.now(tz=UTC)).total_seconds())


def _time(job: Job) -> str:
    """The running time of a job, or the waiting time of one that never ran."""
    if job.started_at is not None:
        return words.duration(job.run_s)
    return "" if job.ended else words.relative(_ago(job.submitted_at))


def _line_up(job: Job) -> tuple[int, datetime]:
    return (job.explanation.ahead if job.explanation else 0), job.submitted_at


def _cut(name: str) -> str:
    clean = safe(name)
    return clean if len(clean) <= LONGEST_NAME else f"{clean[: LONGEST_NAME - 1]}…"
