"""Builds the documentation site into build/docs/site: ``make docs``.

The pages are those of docs/, in the order of docs/README.md, with references that are made from the code: the command
line, REST, the Python client and the training library.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from berth import __version__

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BUILD = ROOT / "build" / "docs"
PAGES = BUILD / "pages"
SITE = BUILD / "site"
FILM = ROOT / "build" / "film" / "berth.webm"  # of `make film`; not everybody who builds the pages makes it
SETTINGS = Path(__file__).with_name("site.yml")
# Pages of the repository that stand outside docs/.
OUTSIDE = {
    "benchmarks/README.md": "figures.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
}
CLIENT, LIBRARY = "reference/client.md", "reference/library.md"
COMMANDS, ROUTES = "reference/commands.md", "reference/rest.md"
REFERENCE = {
    COMMANDS: "Command line",
    ROUTES: "REST routes",
    CLIENT: "Python client",
    LIBRARY: "Training library",
}
NO_HOST, LOCAL = "http://berth.invalid", "http://localhost:8265"  # of the examples in the schema
_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
Navigation = list[dict[str, Any]]


class NotBuilt(Exception):
    """The site could not be built; the sentence says why."""


def build() -> Path:
    """Build the site, and put it in the place of the last one.

    Raises:
        NotBuilt: the generator found a broken link, or is not installed.
    """
    shutil.rmtree(BUILD, ignore_errors=True)
    stage()
    settings = yaml.safe_load(SETTINGS.read_text())
    settings["copyright"] = f"Berth {__version__}"  # at the foot of each page
    settings["nav"] = navigation((DOCS / "README.md").read_text())
    handlers = next(plugin["mkdocstrings"] for plugin in settings["plugins"] if isinstance(plugin, dict))
    handlers["handlers"]["python"]["paths"] = [str(ROOT)]
    (BUILD / "mkdocs.yml").write_text(yaml.safe_dump(settings, sort_keys=False))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "mkdocs.yml"]
    _output(command, BUILD, NO_COLOR="1")
    return SITE


def stage() -> None:
    """Copy all pages to one folder, with links that hold there, and write the references."""
    for path in sorted(DOCS.rglob("*")):
        if path.suffix in {".md", ".png", ".svg"} and "screens" not in path.parts:
            _place(path, PAGES / path.relative_to(DOCS))
    for name, page in OUTSIDE.items():
        _place(ROOT / name, PAGES / page)
    for name, text in _references().items():
        (PAGES / name).write_text(text)
    if FILM.is_file():
        _place(FILM, PAGES / "pictures" / FILM.name)
    index = PAGES / "README.md"
    index.write_text(with_film(index.read_text()) + version_line(__version__, _commit()))


def with_film(index: str) -> str:
    """The first page with the film below its heading and introduction, if there is one."""
    if not FILM.is_file():
        return index
    introduction, heading, rest = index.partition("\n## ")
    film = f'<video src="pictures/{FILM.name}" controls muted style="max-width: 100%"></video>\n'
    return f"{introduction}\n{film}{heading}{rest}"


def version_line(version: str, commit: str) -> str:
    """Which version the pages describe, and where those of another one are."""
    exactly = f" (commit `{commit}`)" if commit else ""
    return (
        f"\n\nThese pages describe Berth {version}{exactly}. Each server shows those of its own version under `/docs/`. "
        "To build those of another one, check out its tag or commit in a clone and run `make docs`; "
        "[what changed](changes.md) lists the versions.\n"
    )


def _commit() -> str:
    """The commit of this clone, short; empty in a copy without git."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _place(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".md":
        target.write_text(move_links(path.read_text(), path, target))
    else:
        shutil.copyfile(path, target)


def move_links(text: str, path: Path, target: Path) -> str:
    """Rewrite the links of the page at ``path`` for its place in the site.

    A link to another page leads to its place there. A link to a file that the site lacks becomes its text.
    """

    def move(link: re.Match[str]) -> str:
        place, mark, anchor = link["target"].partition("#")
        if not place or "://" in place or place.startswith("mailto:"):
            return link[0]
        staged = _place_of(Path(os.path.normpath(path.parent / place)))
        if staged is None:
            return link["text"]
        moved = os.path.relpath(staged, target.parent)
        return f"{link['picture']}[{link['text']}]({moved}{mark}{anchor})"

    return _LINK.sub(move, text)


def _place_of(path: Path) -> Path | None:
    """Where a file of the repository stands in the site; None if it has no place there."""
    if path.is_relative_to(DOCS):
        return PAGES / path.relative_to(DOCS)
    page = OUTSIDE.get(str(path.relative_to(ROOT))) if path.is_relative_to(ROOT) else None
    return PAGES / page if page else None


def navigation(index: str) -> Navigation:
    """The order of the pages, from the tables and lines of links of docs/README.md.

    A second-level heading is a tab. In a tab, each table is a group, named by its first cell.
    """
    tabs: Navigation = [{"Start": ["README.md", {"Tutorial": "tutorial.md"}, "troubleshooting.md"]}]
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        tabs.append({heading.removesuffix(" ..."): _group(body)})
    reference = next(tab["Reference"] for tab in tabs if "Reference" in tab)
    reference += [{title: page} for page, title in REFERENCE.items()]
    return tabs


def _group(body: str) -> list[Any]:
    """Links of lines stand alone; those of a table stand in a group."""
    entries: list[Any] = []
    pages: list[Any] = entries
    for line in body.splitlines():
        if re.match(r"^\| [^\[]+ \| \|$", line):
            pages = []
            entries.append({line.strip("| ").capitalize(): pages})
        pages += [
            {_sentence_case(link["text"]): _staged_name(link["target"])}
            for link in _LINK.finditer(line)
            if link["target"].partition("#")[0].endswith(".md")
        ]
    return entries


def _sentence_case(text: str) -> str:
    text = text.replace("`", "")
    return text[:1].upper() + text[1:]


def _staged_name(target: str) -> str:
    place = _place_of(Path(os.path.normpath(DOCS / target.partition("#")[0])))
    if place is None:
        raise NotBuilt(f"docs/README.md links to {target}, which is not a page of the site.")
    return str(place.relative_to(PAGES))


def _references() -> Mapping[str, str]:
    return {
        CLIENT: "# Python client\n\n::: berth.client\n"
        + "".join(
            f"\n::: berth.client.{part}\n" for part in ("server", "jobs", "sweeps", "programs", "errors")
        ),
        LIBRARY: "# Training library\n\nEverything that `training` exports.\n\n::: training\n"
        "    options:\n      members: true\n",
        COMMANDS: _output(
            [sys.executable, "-m", "typer", "berth.cli.app", "utils", "docs", "--name", "berth"]
        ),
        ROUTES: "\n".join(routes(_schema())),
    }


def _output(command: Sequence[str], folder: Path = ROOT, **variables: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotBuilt(f"{' '.join(command[1:])} failed:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
    return done.stdout


def _schema() -> dict[str, Any]:
    """The OpenAPI description of the REST API."""
    program = (
        "import json, sys\nfrom orchestrator.api import api\njson.dump(api.get_openapi_schema(), sys.stdout)"
    )
    with tempfile.TemporaryDirectory(prefix="berth-docs-") as home:
        text = _output(
            [sys.executable, "manage.py", "shell", "--no-imports", "-v", "0", "-c", program], BERTH_HOME=home
        )
    schema: dict[str, Any] = json.loads(text.replace(NO_HOST, LOCAL))
    return schema


def routes(schema: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a page with every route, grouped as in the schema."""
    yield "# REST routes\n"
    yield "Made from the OpenAPI description, which the server has at `/api/v1/openapi.json`."
    yield "[The contract](api.md) explains how the routes work together.\n"
    groups: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            groups.setdefault((route.get("tags") or ["others"])[0], []).append((method.upper(), path, route))
    for name, group in groups.items():
        yield f"## {_sentence_case(name)}\n"
        for method, path, route in group:
            yield f"### `{method} {path}`\n"
            yield f"{route.get('description') or route.get('summary', '')}\n"
            yield from _parameters(route.get("parameters", []))


def _parameters(parameters: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not parameters:
        return
    yield "| parameter | in | |\n|---|---|---|"
    for parameter in parameters:
        text = parameter.get("description") or parameter.get("schema", {}).get("description", "")
        yield f"| `{parameter['name']}` | {parameter['in']} | {' '.join(text.split())} |"
    yield ""


def main() -> int:
    try:
        sys.stdout.write(f"Built {build().relative_to(ROOT)}; Berth serves it under /docs/.\n")
    except NotBuilt as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
