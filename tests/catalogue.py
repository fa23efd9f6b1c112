"""Which faults and bad inputs of docs/reliability.md have a test that names them.

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
PAGE = ROOT / "docs" / "reliability-tests.md"


@cache
def named_tests() -> dict[str, list[str]]:
    """Test functions by the number in their name: {"F17": ["tests/system/test_kills.py::test_f17_..."]}."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in _functions(ast.parse(path.read_text())):
            for number in NUMBER.findall(name.replace("_", " ")):
                found[number.upper()].append(f"{path.relative_to(ROOT)}::{name}")
    return dict(found)


def _functions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name


def page() -> str:
    lines = [
        "# Tests of faults and bad inputs",
        "",
        "Made by `python -m tests.catalogue`. What each number means: [reliability.md](reliability.md).",
        "",
        "| number | tests |",
        "|---|---|",
    ]
    lines += [
        f"| {number} | {'<br>'.join(f'`{test}`' for test in tests)} |"
        for number, tests in sorted(named_tests().items())
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
