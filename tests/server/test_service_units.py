"""The systemd units: what they say, and that systemd understands them."""

import re
import shutil
import subprocess
from io import StringIO
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import call_command

from orchestrator.server.environment import read_environment
from orchestrator.server.operation import service_units
from tests.conftest import lacking

SETTINGS = Path(__file__).resolve().parents[2] / "docs/reference/settings.md"
VARIABLES = {"BERTH_HOME": "/srv/berth %h", "BERTH_PORT": "9000", "DATABASE_URL": "postgresql://u:secret@h/n"}


@pytest.fixture
def units() -> dict[str, str]:
    environment = read_environment({"BERTH_HOME": "/srv/berth"})
    return service_units.units(environment, settings.BASE_DIR, VARIABLES)


def test_a_restart_of_worker_or_agent_ends_no_training(units):
    modes = {name: "KillMode=process" in text for name, text in units.items()}

    assert [name for name, alone in modes.items() if alone] == ["berth-worker.service", "berth-agent.service"]


def test_units_keep_what_was_chosen_but_no_password(units):
    web = units["berth-web.service"]

    assert 'Environment="BERTH_HOME=/srv/berth %%h"' in web
    assert "Environment=BERTH_PORT=9000" in web
    assert not any("secret" in text for text in units.values())


def test_units_can_keep_every_setting_but_two():
    documented = set(re.findall(r"^\| `(\w+)`", SETTINGS.read_text(), re.MULTILINE))

    # A password is in the one; the other is never right on a server.
    assert documented - set(service_units.KEPT) == {"DATABASE_URL", "BERTH_DEBUG"}


def test_a_redis_of_somebody_else_gets_no_unit():
    environment = read_environment({"BERTH_HOME": "/srv/berth", "BERTH_REDIS_URL": "redis://h:6379/0"})

    assert "berth-redis.service" not in service_units.units(environment, settings.BASE_DIR, {})


def test_systemd_accepts_the_units(tmp_path: Path, home):
    if shutil.which("systemd-analyze") is None:
        lacking("systemd-analyze is not installed")
    folder = tmp_path / "units"
    call_command("install_service", folder=folder, stdout=StringIO())
    paths = sorted(map(str, folder.iterdir()))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--user", *paths],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    said = [line for line in done.stderr.splitlines() if "berth" in line]
    assert said == []
