"""berth usage: who used the devices, as a table."""

from berth.cli.printing import safe
from berth.cli.tables import grid, terminal
from berth.client import Usage, UsageRow
from berth.shared import words

USES = {
    "job": "jobs",
    "foreign": "others' processes",
    "reserved": "kept for a job",
    "drained": "drained",
    "failed": "out of order",
    "unknown": "unknown",
}


def show_usage(usage: Usage) -> None:
    console = terminal()
    measured = any(_energy_kwh(row) for row in usage.rows)
    titles = [
        {"owner": "who"}.get(usage.by, usage.by),
        "GPU-hours",
        "lost",
        "idle",
        "wasted",
        "jobs",
        "mean wait",
    ]
    table = grid(*titles, *(["energy"] if measured else []))
    for column in table.columns[1:]:
        column.justify = "right"
    for row in usage.rows:
        table.add_row(*_cells(row), *([f"{_energy_kwh(row):,.1f} kWh"] if measured else []))
    console.print(table)
    if usage.device_hours:
        parts = [
            f"{USES.get(use, use)} {100 * hours / usage.device_hours:.0f} %"
            for use, hours in sorted(usage.uses.items(), key=lambda item: -item[1])
            if hours > 0
        ]
        console.print(f"Of {words.value(round(usage.device_hours, 1))} device hours: {', '.join(parts)}.")


def _cells(row: UsageRow) -> list[str]:
    wasted = f"{100 * row.wasted_gpu_hours / row.gpu_hours:.0f} %" if row.gpu_hours else ""
    wait = "" if row.mean_queue_s is None else words.duration(row.mean_queue_s)
    hours = [f"{value:,.1f}" for value in (row.gpu_hours, row.failed_gpu_hours, row.idle_gpu_hours)]
    return [safe(row.key), *hours, wasted, str(row.jobs_started), wait]


def _energy_kwh(row: UsageRow) -> float:
    return float(row.json.get("energy_kwh", 0.0))  # an older server sends none
