"""Each command in the operators' pages is run, as far as a test can."""

import itertools
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.system.server import Server, prepare_home

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("install", "upgrade", "back-up", "monitor")
# Run by other tests, or not to be run by a test at all: each with its reason.
ELSEWHERE = {
    "git": "needs a remote",
    "docker": "no engine here; the file is checked in test_compose.py",
    "systemctl": "needs a user manager; the units are checked in test_service_units.py",
    "echo": "writes .env",
    "make": "its targets are checked below; they become manage.py",
    "0": "a line of a crontab",
}


def commands() -> list[tuple[str, str]]:
    """(page, command) of every line in a block of shell."""
    found = []
    for page in PAGES:
        text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text()
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            found += [(page, line) for line in block.splitlines() if line.strip()]
    return found


def words(command: str) -> tuple[dict[str, str], list[str]]:
    """Settings before a command, and the command."""
    parts = shlex.split(command)
    settings = list(itertools.takewhile(lambda part: re.match(r"^[A-Z_]+=", part), parts))
    return dict(each.split("=", 1) for each in settings), parts[len(settings) :]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    home = tmp_path_factory.mktemp("docs") / "berth"
    return Server(home, prepare_home(home), "cpu:2")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_command_of_the_pages_works(server: Server, tmp_path: Path) -> None:
    ran = 0
    server.start()
    try:
        for page, line in commands():
            settings, command = words(line)
            restores = "restore" in command
            if restores:
                server.stop()
            if command[0] == "curl":
                path = command[1].partition("/api/v1")[2]
                assert server.call("GET", path)[0] == 200, line
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
    assert ran >= 10


def _manage(
    server: Server, settings: dict[str, str], command: list[str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """``../`` of the pages is a folder of this test's."""
    arguments = [str(folder / part[3:]) if part.startswith("../") else part for part in command]
    return subprocess.run(
        [str(ROOT / ".venv/bin/python"), *arguments],
        cwd=ROOT,
        env={**server.environment, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_every_target_of_make_that_the_pages_name_is_there():
    makefile = (ROOT / "Makefile").read_text()
    named = {words(line)[1][1] for _, line in commands() if words(line)[1][0] == "make"}

    assert named == {"up", "down", "install-service", "chaos"}
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
