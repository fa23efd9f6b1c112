"""The systemd units: what they say, and that systemd understands them."""

import re
import shutil
import subprocess
from io import StringIO
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command

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


def test_worker_and_agent_may_divide_their_group(units):
    delegated = [name for name, text in units.items() if "Delegate=yes" in text]

    assert delegated == ["berth-worker.service", "berth-agent.service"]


def test_units_of_the_system_run_as_their_user_and_start_at_boot():
    environment = read_environment({"BERTH_HOME": "/srv/berth"})
    units = service_units.units(environment, settings.BASE_DIR, VARIABLES, user="berth")

    services = [text for name, text in units.items() if name.endswith(".service")]
    assert all("\nUser=berth\n" in text for text in services)
    assert all("EnvironmentFile=-/etc/berth/environment" in text for text in services)
    assert "WantedBy=multi-user.target" in units["berth.target"]


@pytest.mark.parametrize(
    ("user", "home", "sentence"),
    [
        ("nobody-of-that-name", "/srv/berth", "useradd --system --create-home --groups video nobody-of-that-name"),
        ("root", "/srv/berth", "Jobs would run as root"),
        ("daemon", None, "Set BERTH_HOME to a local folder of daemon"),
    ],
)  # fmt: skip
def test_service_of_the_system_asks_for_what_it_needs(monkeypatch, tmp_path, user, home, sentence):
    monkeypatch.delenv("BERTH_HOME", raising=False)
    if home:
        monkeypatch.setenv("BERTH_HOME", home)

    with pytest.raises(CommandError, match=sentence):
        call_command("install_service", system=True, user=user, folder=tmp_path, stdout=StringIO())

    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize("manager", ["user", "system"])
def test_systemd_accepts_the_units(tmp_path: Path, home, monkeypatch, manager):
    if shutil.which("systemd-analyze") is None:
        lacking("systemd-analyze is not installed")
    folder = tmp_path / "units"
    monkeypatch.setenv("BERTH_HOME", str(home.root))
    call_command(
        "install_service", folder=folder, system=manager == "system", user="daemon", stdout=StringIO()
    )
    paths = sorted(map(str, folder.iterdir()))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", f"--{manager}", *paths],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    said = [line for line in done.stderr.splitlines() if "berth" in line]
    assert said == []
