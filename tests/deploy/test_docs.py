"""Each command in the tutorial and the operators' pages is run, as far as a test can."""

import ast
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import pytest
import typer
import yaml

from berth.cli.app import app
from tests.system.server import Prepared, Server
from tests.trainers import page as page_of_trainers
from tests.waiting import PATIENCE_S
from training.config import TrainConfig
from training.resuming.trainers import TRAINERS

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "how-to/install",
    "how-to/upgrade",
    "how-to/back-up",
    "how-to/restore",
    "how-to/monitor",
    "how-to/harden",
    "troubleshooting",
)
# Run by other tests, or not to be run by a test at all: each with its reason.
ELSEWHERE = {
    "git": "needs a remote",
    "docker": "run by `make containers`; the file is checked in test_compose.py",
    "systemctl": "needs a user manager; the units are checked in test_service_units.py",
    "sudo": "changes the machine; the command is tested in test_service_units.py",
    "nvidia-ctk": "of the driver's container tools; there is no NVIDIA device here",
    "make": "its targets are checked below; they become manage.py",
    "0": "a line of a crontab",
}


def commands(pages: Sequence[str] = PAGES) -> list[tuple[str, str]]:
    """(page, command) of every line in a block of shell."""
    found = []
    for page in pages:
        text = (ROOT / "docs" / f"{page}.md").read_text()
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            found += [(page, line) for line in block.splitlines() if line.strip()]
    return found


def words(command: str) -> tuple[dict[str, str], list[str]]:
    """Settings before a command, and the command."""
    parts = shlex.split(command)
    settings = list(itertools.takewhile(lambda part: re.match(r"^[A-Z_]+=", part), parts))
    return dict(each.split("=", 1) for each in settings), parts[len(settings) :]


@pytest.fixture(scope="module")
def server(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Server:
    home = tmp_path_factory.mktemp("docs") / "berth"
    shutil.copytree(prepared.home, home)  # whole: a restore refuses a folder with links that lead out of it
    return Server(home, prepared.token, "cpu:2")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_command_of_the_pages_works(server: Server, tmp_path: Path) -> None:
    ran = 0
    server.start()
    try:
        _manage(server, {}, ["manage.py", "people", "add", "ana"], tmp_path)  # whom the pages name
        for page, line in commands():
            settings, command = words(line)
            restores = "restore" in command
            if restores:
                server.stop()
            if command[0] == "curl":
                path = command[1].partition("/api/v1")[2]
                assert server.call("GET", path)[0] == 200, line
            elif command[0] in {"echo", "mkdir"}:
                subprocess.run(["sh", "-c", line], cwd=tmp_path, check=True)
            elif command[0] == ".venv/bin/python":
                done = _manage(server, settings, command[1:], tmp_path)
                assert done.returncode == 0, f"{page}: {line}\n{done.stdout}{done.stderr}"
            else:
                assert command[0] in ELSEWHERE, f"{page}: {line}"
                continue
            ran += 1
            if restores:
                server.start()
    finally:
        server.clean_up()
    assert ran >= 15
    passwords = (tmp_path / ".env").read_text()  # those without which docker-compose.yml refuses
    assert re.findall(r"^(\w+)=\w{48}$", passwords, re.MULTILINE) == ["POSTGRES_PASSWORD", "REDIS_PASSWORD"]


def _manage(
    server: Server, settings: dict[str, str], command: list[str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """``../`` of the pages is a folder of this test's, and the first admin is called root."""
    arguments = [str(folder / part[3:]) if part.startswith("../") else part for part in command]
    if "changepassword" in command:
        arguments[-1] = "root"
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**server.environment, **settings},
        input=2 * "another long word of passing\n",
        start_new_session=True,  # without a terminal it reads the password from its input
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_command_of_the_tutorial_works(server: Server, tmp_path: Path) -> None:
    server.start()
    try:
        said = {line: _follow_tutorial(server, line, tmp_path) for _, line in commands(["tutorial"])}
        fast = next(each for each in server.get("/jobs")["results"] if each["name"] == "fast-lr")
        kinds = [each["exit_kind"] for each in server.attempts(fast["id"])]
    finally:
        server.clean_up()

    assert (fast["state"], kinds) == ("succeeded", ["signal", "ok"])
    assert "2 of 2 CPU slots free" in said["berth"]
    assert "1e-2" in said["berth compare -2"]
    assert list(tmp_path.glob("**/*.tar"))


def _follow_tutorial(server: Server, line: str, folder: Path) -> str:
    """Do what a line says; returns what it printed."""
    _, command = words(line.replace("$PWD", str(ROOT)))
    if command[0] in {"make", "export"}:
        return ""
    if command[0] == "pkill":  # by name it would end others' jobs, too
        fast = next(each["id"] for each in server.get("/jobs")["results"] if each["name"] == "fast-lr")
        server.wait_for_line(fast, "step 40/", limit_s=120)
        os.kill(server.ranks(fast)[0], signal.SIGKILL)
        server.wait_until(lambda: len(server.attempts(fast)) == 2, 60)
        return ""
    arguments = [f"http://127.0.0.1:{server.port}" if "localhost" in part else part for part in command[1:]]
    arguments = [str(ROOT / part) if part.startswith("examples/") else part for part in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "berth.cli", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "BERTH_URL": "",
            "BERTH_TOKEN": "",
        },
        input=f"{server.token}\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_table_of_trainers_is_made_of_what_was_run():
    text = page_of_trainers.PAGE.read_text()

    assert text == page_of_trainers.with_table(text, page_of_trainers.read()), "write it again: make trainers"


def test_guide_has_each_trainer_that_berth_knows_and_where_it_saves():
    text = (ROOT / "docs/how-to/resume.md").read_text()

    assert [each.name for each in TRAINERS if each.name not in text or each.saves not in text] == []


def test_every_target_of_make_that_the_pages_name_is_there():
    makefile = (ROOT / "Makefile").read_text()
    everywhere = commands([*PAGES, "tutorial"])
    named = {words(line)[1][1] for _, line in everywhere if words(line)[1][0] == "make"}

    assert named == {"demo", "up", "down", "install-service", "torch", "chaos"}
    assert all(re.search(rf"^{name}:", makefile, re.MULTILINE) for name in named)


def test_the_settings_of_the_monitoring_page_are_yaml_and_their_files_exist():
    text = (ROOT / "docs/how-to/monitor.md").read_text()
    (block,) = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)

    settings = yaml.safe_load(block)

    assert settings["scrape_configs"][0]["authorization"]["type"] == "Token"
    rules = yaml.safe_load((ROOT / "deploy/alerts.yml").read_text())
    assert all(rule["annotations"]["action"] for rule in rules["groups"][0]["rules"])
    if promtool := shutil.which("promtool"):
        subprocess.run([promtool, "check", "rules", ROOT / "deploy/alerts.yml"], check=True)


def test_the_reference_has_every_setting_and_no_other():
    rooms = (ROOT / "orchestrator" / room for room in ("server", "people", "live"))
    modules = (module for room in rooms for module in room.rglob("*.py"))
    read = {name for module in modules for name in re.findall(r'"(BERTH_[A-Z_]+[A-Z])"', module.read_text())}
    page = (ROOT / "docs/reference/settings.md").read_text()

    assert set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)) == read | {"DATABASE_URL"}


def test_the_reference_has_every_setting_of_a_training_with_its_default():
    page = (ROOT / "docs/reference/training.md").read_text()
    real = {each.name: each.default for each in fields(TrainConfig)}
    told, wrong = set[str](), []
    for row in re.findall(r"^\| (`[^|]*) \|([^|]*)\|", page, re.MULTILINE):
        names, defaults = (re.findall(r"`([^`]+)`", cell) for cell in row)
        told |= set(names)
        if len(names) == len(defaults):  # else the row says it in words
            wrong += [each for each in zip(names, defaults, strict=True) if _value(each[1]) != real[each[0]]]

    assert told == set(real)
    assert wrong == []


def _value(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def test_the_page_of_the_command_line_names_every_command():
    page = (ROOT / "docs/how-to/use-the-command-line.md").read_text()
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)

    shown = [name for name, command in group.commands.items() if not command.hidden]
    assert [name for name in shown if not re.search(rf"`berth {name}\b", page)] == []


PAGES_OF_ALL = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]


@pytest.mark.parametrize("page", PAGES_OF_ALL)
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]

    broken = [
        target
        for target in targets
        if target and "://" not in target and not (ROOT / page).parent.joinpath(target).exists()
    ]
    assert broken == []


def test_every_page_is_reached_from_the_first_one() -> None:
    """README.md leads to docs/README.md, and that to every page."""
    found, ahead = set[Path](), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop().resolve()
        if page in found or page.suffix != ".md" or not page.exists():
            continue
        found.add(page)
        ahead += [page.parent / target for target in re.findall(r"\]\(([^)#\s]+)", page.read_text())]

    assert [each for each in (ROOT / "docs").rglob("*.md") if each not in found] == []


PICTURES = {".png", ".jpg", ".jpeg", ".gif", ".webp", ".webm", ".mp4"}
LARGEST_PICTURE_BYTES = 250_000


def test_git_holds_no_pictures_but_those_that_the_readme_shows() -> None:
    """Generated pictures would grow the history by megabytes at each change of a style."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    files = {Path(name) for name in listed.splitlines()}
    shown = re.findall(r"!\[[^]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text())

    assert len(shown) == len(set(shown))
    assert all((ROOT / name).stat().st_size <= LARGEST_PICTURE_BYTES for name in shown)
    if files:  # a copy of the tree has no index
        assert {path for path in files if path.suffix in PICTURES} == {Path(name) for name in shown}
