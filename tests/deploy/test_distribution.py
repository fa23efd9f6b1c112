"""What an installation brings: the client alone is light, and no page leads to a stranger's package."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=]", requirement)[0] for requirement in requirements}


def test_the_client_alone_needs_neither_django_nor_torch():
    assert names(PROJECT["dependencies"]) == {"httpx", "pathspec", "rich", "typer", "websockets"}


def test_server_and_library_are_extras():
    extras = PROJECT["optional-dependencies"]

    assert {"django", "celery", "uvicorn"} <= names(extras["server"])
    assert "torch" not in names(extras["server"])  # its build depends on the driver
    assert "ldap3" not in names(extras["server"])  # nobody maintains it
    assert names(extras["ldap"]) == {"ldap3"}
    assert {"numpy", "torch"} <= names(extras["training"])


def test_no_page_installs_the_package_of_somebody_else():
    """On the public index the name berth belongs to another project."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    install = re.compile(
        r"(?:pip install|uvx|uv add|--from|--with)\s+(?:-\S+\s+)*[\"']?berth(?:\[|[\"'\s`]|$)", re.MULTILINE
    )

    assert PROJECT["name"] == "berth-gpu"
    assert [page.name for page in pages if install.search(page.read_text())] == []
