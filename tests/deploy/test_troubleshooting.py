"""The troubleshooting page quotes the program's own messages."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
QUOTED = re.compile(r'"([^"\n]{12,})"')
# What stands where the code puts a value: numbers with their unit, and the names of the page's examples.
VALUES = re.compile(
    r"\.\.\.|\b(?:GPU )?\d[\d:.,]*(?: (?:GiB|MiB|min|s|UTC))?|\b(?:ada|big-7b|carl|course|GPUs?)\b"
    r"|\b(?:draining|reserved|failed|reports no progress|The run (?=needed))"
    r"|(?<=the scope )write|(?<=this needs )admin|Redis (?=did not answer within)"
    r"|(?<=It starts with )make up"
)


def quotes() -> list[str]:
    return QUOTED.findall(PAGE.read_text())


def texts_of_the_code() -> str:
    """Every text in our modules, cut where a value stands, and the templates as they are."""
    found = []
    for package in ("berth", "orchestrator", "dashboard", "training"):
        for path in (ROOT / package).rglob("*.py"):
            nodes = ast.walk(ast.parse(path.read_text()))
            found += [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    found += [path.read_text() for path in (ROOT / "templates").rglob("*.html")]
    return "\n".join(found)


@pytest.fixture(scope="module")
def code() -> str:
    return texts_of_the_code()


@pytest.mark.parametrize("quote", quotes())
def test_the_page_quotes_the_words_of_the_code(quote: str, code: str) -> None:
    parts = [part.strip(" ,;.()") for part in VALUES.split(quote)]

    assert [part for part in parts if len(part) > 3 and part not in code] == []


def test_the_page_quotes_many() -> None:
    assert len(quotes()) > 30
