"""What a benchmark measures, how it is shown, and how it is kept."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

NAMES = (
    "start",
    "load",
    "recover",
    "fault_times",
    "telemetry",
    "tee",
    "scheduling",
    "packing",
    "decide",
    "pages",
    "checkpoint",
    "resume",
    "startup",
    "step",
    "bench_grid",
    "estimate",
    "plan",
    "neighbours",
    "services",
    "mcp",
)
LONG = (
    "evaluation",
    "soak",
    "environments",
    "install",
    "sessions",
    "sweeps",
    "engines",
)  # long, or with downloads; only when asked for by name
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "benchmarks" / "README.md"
PACKAGES = ("django", "celery", "uvicorn", "numpy", "torch")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with its promise; one without ``target`` is there to compare with."""

    name: str
    unit: str
    meaning: str
    target: float | None = None
    at_least: bool = False  # the target is a floor, else a ceiling

    def holds(self, value: float) -> bool | None:
        if self.target is None:
            return None
        return value >= self.target if self.at_least else value <= self.target


@dataclass(slots=True)
class Outcome:
    """The measured figures by name; what could not be measured is in ``missing`` with the reason."""

    figures: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)


def show_in_readme(name: str, text: str) -> None:
    """Put a table in its place on the page; a page without that place stays as it is."""
    page = README.read_text()
    before, opening, rest = page.partition(f"<!-- {name} -->\n")
    _, closing, after = rest.partition(f"<!-- /{name} -->")
    if opening and closing:
        README.write_text(f"{before}{opening}{text}{closing}{after}")


def read_load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes: a figure from a busy machine is to be read as such."""
    return [round(value, 2) for value in os.getloadavg()]


def write_result(
    name: str, figures: Sequence[Figure], outcome: Outcome, load_before: list[float]
) -> dict[str, Any]:
    """Write ``results/NAME.json``; its ``figures`` are flat, with null for what could not be measured here."""
    record = {
        "benchmark": name,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": read_host(),
        "versions": read_versions(),
        "load": {"before": load_before, "after": read_load()},
        "figures": {each.name: rounded(outcome.figures.get(each.name)) for each in figures},
        "targets": {each.name: each.target for each in figures if each.target is not None},
        "not_measured": outcome.missing,
        "details": outcome.details,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    return record


def describe(record: dict[str, Any]) -> str:
    """Where and when a result was measured, in a line."""
    host, load = record["host"], record["load"]
    return (
        f"{record['date'][:10]}, {host['cpu']}, {host['cores']} cores, {host['memory_gib']:g} GiB, "
        f"Linux {host['kernel']}; load {load['before'][0]} before, {load['after'][0]} after."
    )


def rounded(value: float | None) -> float | None:
    """Three decimals below ten, then two, none from a thousand on."""
    if value is None:
        return None
    return round(value, 3 if abs(value) < 10 else 2 if abs(value) < 1000 else 0)


def read_host() -> dict[str, Any]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 1024**3, 1),
        "kernel": platform.release(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def read_versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    described = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found["berth"] = described.stdout.strip() or "unknown"
    return found


def table(name: str, figures: Sequence[Figure], outcome: Outcome) -> str:
    """The figures as Markdown, so that the same text fits a terminal and a page."""
    lines = [f"### {name}", "", "| figure | measured | target | |", "|---|---:|---:|---|"]
    for each in figures:
        target = (
            "" if each.target is None else f"{'≥' if each.at_least else '≤'} {each.target:,g} {each.unit}"
        )
        value = outcome.figures.get(each.name)
        if value is None:
            measured, verdict = "-", outcome.missing.get(each.name, "not measured")
        else:
            measured = f"{rounded(value):,g} {each.unit}"
            verdict = {True: "holds", False: "misses", None: ""}[each.holds(value)]
        lines.append(f"| `{each.name}` | {measured.strip()} | {target.strip()} | {verdict} |")
    return "\n".join([*lines, ""])
