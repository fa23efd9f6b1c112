"""berth why, gpu, drain and data: explanations in sentences."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from berth.cli.printing import safe, say
from berth.cli.tables import grid, heat_text, job_line, note, state_text, terminal, wall
from berth.client import Berth, Calibration, Dataset, Device, Explanation, Job, NotFound
from berth.shared import words

_CHANGES = {
    "gpus": "-g {}",
    "gpu_memory_gib": "-m {}",
    "time_limit_s": "-t {:.0f}s",
    "pool": "--pool {}",
    "priority": "-p {}",
}


def explain(job: Job, answer: Explanation) -> None:
    """Print why a job waits, when it starts, and which changes would start it now."""
    terminal().print(Text.assemble((job_line(job), "bold"), "  ", state_text(job.state)))
    if not job.waits:
        say(safe(note(job) or job.reason or answer.sentence))
        return
    say(safe(answer.sentence))
    if job.state == "queued" and answer.start_earliest is None and answer.reason != "not_before":
        say("Its start cannot be estimated yet.")
    if answer.ahead:
        say(f"{words.plural(answer.ahead, 'job')} ahead of it.")
    say_changes(answer.would_start_now_with)
    say_calibration(answer.calibration)


def say_changes(changes: Sequence[Mapping[str, Any]]) -> None:
    """Print the changes that would start a job now, as options of berth run."""
    for change in changes:
        form = _CHANGES.get(change["change"], f"with {change['change']} {{}}")
        stops = change.get("stops", 0)
        after = f" (stops {words.plural(stops, 'job')} first)" if stops else ""
        say(f"It would start now with: {form.format(change['value'])}{after}")


def say_calibration(calibration: Calibration | None) -> None:
    if calibration:
        inside, of = calibration["inside"], calibration["of"]
        say(f"Estimates like this were inside their range {inside} times of the last {of}.")


def find_device(berth: Berth, text: str) -> Device:
    """Find the device with this number, id or label; 0 is of the first server, gpu2:0 of another.

    Raises:
        NotFound: there is no such device.
    """
    devices = sorted(berth.devices(), key=lambda device: device.kind == "cpu")  # GPU 0 before CPU slot 0
    for device in devices:
        if text in {_number(device), device.id, device.label}:
            return device
    known = ", ".join(map(_number, devices)) or "none"
    raise NotFound(f"There is no device {text!r}; there are {known}.")


def _number(device: Device) -> str:
    return str(device.index) if device.node == "local" else f"{device.node}:{device.index}"


def show_device(device: Device) -> None:
    console = terminal()
    console.print(wall([device], console.width))
    facts = [f"pool {device.pool}", f"node {device.node}", f"id {device.id}", heat_text(device)]
    console.print(Text(safe("  ".join(fact for fact in facts if fact)), "dim"))
    if device.reading is None or not device.reading.processes:
        return
    table = grid("pid", "memory", "whose", "job", "command")
    table.columns[3].no_wrap = True
    for process in device.reading.processes:
        whose = "" if process.job is None else process.job[-8:]
        table.add_row(
            str(process.pid),
            words.size(process.used_bytes),
            Text(safe(process.user or "")),
            Text(whose or "external", "" if whose else "yellow"),
            Text(safe(process.command)),
        )
    console.print(table)


def say_drained(device: Device) -> None:
    if device.state != "draining":
        say(f"{safe(device.label)} is {device.state}; jobs may start on it.")
        return
    on_it = ", ".join(f"{safe(each.name)} {each.short_id} ({safe(each.owner)})" for each in device.holders)
    goes_on = f"{on_it} {'go' if len(device.holders) > 1 else 'goes'} on; " if on_it else ""
    say(
        f"{safe(device.label)} drains: {goes_on}nothing new starts there. Undo: berth drain {_number(device)} --undo"
    )


def dataset_table(datasets: Sequence[Dataset]) -> Table:
    table = grid("dataset", "size", "whose", "where", "")
    for each in datasets:
        table.add_row(
            Text(each.reference),
            "" if each.size_bytes is None else words.size(each.size_bytes),
            Text(safe(each.owner)),
            Text("pushed" if each.pushed else safe(f"{each.root}:{each.path}")),
            Text("" if each.available else "its files are not there now", "yellow"),
        )
    return table


def say_dataset(dataset: Dataset) -> None:
    size = "" if dataset.size_bytes is None else f" ({words.size(dataset.size_bytes)})"
    say(
        f"{dataset.reference} is {'here' if dataset.pushed else 'registered'}{size}. Use it with: berth run --data {dataset.reference} train.py"
    )
