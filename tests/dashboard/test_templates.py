"""How templates are written: djade formats their tags, and no line is longer than a screen."""

import re
import subprocess
import sys
from pathlib import Path

from django.conf import settings

from dashboard.pages.rest_form import OPERATION
from tests.conftest import lacking

FOLDER = Path(settings.BASE_DIR) / "templates"
USUAL_COLUMNS = 120
MOST_COLUMNS = 160
LONG_LINES_PERCENT = 2


def templates() -> list[Path]:
    return sorted(FOLDER.rglob("*.html"))


def test_templates_are_formatted():
    djade = Path(sys.executable).parent / "djade"
    if not djade.exists():
        lacking("djade")

    done = subprocess.run(
        [djade, "--check", "--target-version", "5.2", *templates()],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, f"Run djade on templates/: {done.stdout}{done.stderr}"


def test_lines_of_templates_fit_a_screen():
    lines = [
        (f"{path.relative_to(FOLDER)}:{number}", len(line))
        for path in templates()
        for number, line in enumerate(path.read_text().splitlines(), 1)
    ]

    assert [place for place, columns in lines if columns > MOST_COLUMNS] == []
    long = [place for place, columns in lines if columns > USUAL_COLUMNS]
    assert len(long) <= len(lines) * LONG_LINES_PERCENT / 100, long


def test_every_operation_that_a_form_names_is_one_that_forms_may_ask_for():
    named = {
        (path.name, re.sub(r"\{\{.*?\}\}", "x", re.sub(r"(?<=/api/v1/)\{\{.*?\}\}", "projects/x", each)))
        for path in templates()
        for each in re.findall(r'name="do" value="([^"]*)"', path.read_text())
        if "{%" not in each
    }

    assert len(named) > 20
    assert not [each for each in sorted(named) if not OPERATION.fullmatch(each[1])]
