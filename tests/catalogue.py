"""Which faults and bad inputs of docs/reliability.md have a test that names them, and why the others have none.

python -m tests.catalogue      writes docs/reliability-tests.md
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NUMBER = re.compile(r"(?<![a-z0-9])([bf]\d\d)(?![0-9])")
CASE = re.compile(r"([bf]\d\d): ")  # the name of one case of a test with many
NUMBERS = [f"B{n:02d}" for n in range(1, 69)] + [f"F{n:02d}" for n in range(1, 91)]
WITHOUT_TEST = {
    "B46": "there is no search over hyper-parameters yet, so nothing takes a space of them",
    "F68": "nothing of Berth is keyed by the host's name",
    "F73": "nothing of Berth needs inotify: files are polled; and without a socket pages poll (F35, F71)",
}
PAGE = ROOT / "docs" / "reliability-tests.md"


@cache
def named_tests() -> dict[str, list[str]]:
    """Test functions by the number in their name: {"F17": ["tests/system/test_kills.py::test_f17_..."]}."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree, file = ast.parse(path.read_text()), str(path.relative_to(ROOT))
        for name in _functions(tree):
            for number in NUMBER.findall(name.replace("_", " ")):
                found[number.upper()].append(f"{file}::{name}")
        for case in _cases(tree):
            if not found[case[:3].upper()]:
                found[case[:3].upper()].append(f"{file} ({case})")
    return {number: tests for number, tests in found.items() if tests}


def _functions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name


def _cases(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and CASE.match(node.value):
            yield node.value


def page() -> str:
    lines = [
        "# Tests of faults and bad inputs",
        "",
        "Made by `python -m tests.catalogue`. What each number means: [reliability.md](reliability.md).",
        "",
        "| number | tests |",
        "|---|---|",
    ]
    found = named_tests()
    for number in NUMBERS:
        tests = "<br>".join(f"`{test}`" for test in found.get(number, []))
        lines.append(f"| {number} | {tests or f'none: {WITHOUT_TEST[number]}'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
