"""Keeps what the matrix found, and makes the table of the docs from it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.trainers.course import BEGINS_AGAIN, BY_ITSELF
from tests.trainers.rows import ROWS

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).resolve().parents[2] / "docs/reference/trainers.md"
BEGIN, END = "<!-- trainers -->\n", "<!-- /trainers -->"
_HEAD = (
    "| trainer | version | ranks | tried | live | checkpoint | resumes |",
    "|---|---|---|---|---|---|---|",
)


def read() -> list[dict[str, Any]]:
    """Every row that was run, in the order of the matrix."""
    return list(json.loads(RESULTS.read_text())) if RESULTS.exists() else []


def keep(result: dict[str, Any]) -> None:
    """Put a result in the place of the one before of the same trainer and ranks."""
    others = [each for each in read() if _key(each) != _key(result)]
    order = {row.name: place for place, row in enumerate(ROWS)}
    everything = sorted(
        [*others, result], key=lambda each: (order.get(each["trainer"], len(order)), each["ranks"])
    )
    RESULTS.write_text(json.dumps(everything, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), everything))


def with_table(page: str, results: Sequence[dict[str, Any]]) -> str:
    """A page with the table of these results in its place."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}{table(results)}{END}{after}"


def table(results: Sequence[dict[str, Any]]) -> str:
    titles = {row.name: row.title for row in ROWS}
    rows = [_line(titles[each["trainer"]], each) for each in results if each["trainer"] in titles]
    return "\n".join([*_HEAD, *rows]) + "\n"


def _line(title: str, result: dict[str, Any]) -> str:
    facts = [title, result["version"], str(result["ranks"]), result["date"]]
    if problem := result.get("failed"):
        return f"| {' | '.join(facts)} | failed: {problem} | | |"
    live = ", ".join(name for name, is_live in result["live"].items() if is_live)
    said = result["resumes"]
    resumes = (
        said
        if said in {BY_ITSELF, BEGINS_AGAIN}
        else f"`--resume-args '{said}'`"
        if said.startswith("--")
        else f"with `{said}`"
    )
    return f"| {' | '.join([*facts, live, '`' + result['checkpoint'] + '`', resumes])} |"


def _key(result: dict[str, Any]) -> tuple[str, int]:
    return result["trainer"], result["ranks"]
