"""Which faults and bad inputs of docs/reliability.md have a test, and why the others have none.

A test names its codes in a mark: ``@pytest.mark.code("F14", "B03")``; a mark on a class, or ``pytestmark``
at the top of a file, counts for all tests inside. One case of a parametrized test names its code in its own
name ("f17: killed from outside") or in its marks. Names like ``test_f14_...`` count as well.

python -m tests.catalogue      writes docs/reliability-tests.md
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE_IN_NAME = re.compile(r"(?<![a-z0-9])([bft]\d\d)(?![0-9])")
CODE_OF_CASE = re.compile(r"([bft]\d\d): ")  # one case of a test with many
NUMBERS = [f"B{n:02d}" for n in range(1, 69)] + [f"F{n:02d}" for n in range(1, 91)]
THREATS = [f"T{n:02d}" for n in range(1, 33)]  # marks may name them; the page does not list them
WITHOUT_TEST = {
    "B46": "there is no search over hyper-parameters yet, so nothing takes a space of them",
    "F68": "nothing of Berth is keyed by the host's name",
    "F73": "nothing of Berth needs inotify: files are polled; and without a socket pages poll (F35, F71)",
}
PAGE = ROOT / "docs" / "reliability-tests.md"
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def named_tests() -> dict[str, list[str]]:
    """Tests by the code that they name: {"F17": ["tests/system/test_kills.py::test_killed_rank_..."]}."""
    tests: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = str(path.relative_to(ROOT))
        for code, test in codes_in(path.read_text(), file):
            if test not in tests[code]:
                tests[code].append(test)
    return dict(tests)


def codes_in(source: str, file: str) -> Iterator[tuple[str, str]]:
    """Each code that a test file names, with the test: functions first, then cases of codes without one."""
    tree = ast.parse(source)
    functions = list(_coded_functions(tree, file, inherited=_codes_of_file(tree)))
    yield from functions
    named = {code for code, _ in functions}
    for case in _cases(tree):
        code = case[:3].upper()
        if code not in named:
            named.add(code)
            yield code, f"{file} ({case})"


def _coded_functions(
    node: ast.Module | ast.ClassDef, file: str, inherited: list[str]
) -> Iterator[tuple[str, str]]:
    for child in node.body:
        if not isinstance(child, Definition):
            continue
        codes = [*inherited, *_marked_codes(child.decorator_list)]
        if isinstance(child, ast.ClassDef):
            yield from _coded_functions(child, f"{file}::{child.name}", codes)
        elif child.name.startswith("test_"):
            codes += [code.upper() for code in CODE_IN_NAME.findall(child.name.replace("_", " "))]
            yield from ((code, f"{file}::{child.name}") for code in codes)


def _codes_of_file(tree: ast.Module) -> list[str]:
    marks = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    return _marked_codes(marks)


def _marked_codes(marks: list[ast.expr]) -> list[str]:
    """The arguments of ``pytest.mark.code(...)``, also inside ``pytest.param(..., marks=...)``."""
    return [
        argument.value
        for mark in marks
        for call in ast.walk(mark)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.code"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def _cases(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE_OF_CASE.match(node.value):
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
    tests_by_code = named_tests()
    for number in NUMBERS:
        tests = "<br>".join(f"`{test}`" for test in tests_by_code.get(number, []))
        lines.append(f"| {number} | {tests or f'none: {WITHOUT_TEST[number]}'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
