"""``docker-compose.yml`` and the image, as far as they can be checked without an engine."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import load_command_class

from orchestrator.server.environment import read_environment

ROOT = Path(__file__).resolve().parents[2]
# Of the Compose Specification, the keys that we may use.
TOP = {"name", "services", "volumes"}
SERVICE = {
    "build": (str, dict),
    "command": (str, list),
    "depends_on": (list, dict),
    "devices": (list,),
    "environment": (list, dict),
    "healthcheck": (dict,),
    "image": (str,),
    "init": (bool,),
    "ulimits": (dict,),
    "ports": (list,),
    "restart": (str,),
    "security_opt": (list,),
    "shm_size": (str, int),
    "stop_grace_period": (str,),
    "volumes": (list,),
}
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "docker-compose.yml").read_text()))


@pytest.fixture(scope="module")
def services(compose) -> dict[str, Any]:
    return dict(compose["services"])


def ours(services: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in services.items() if "build" in each}


def test_t25_redis_asks_the_jobs_beside_it_for_a_password(services):
    """They share its network, and no mount hides a port."""
    variable = "${REDIS_PASSWORD:?set REDIS_PASSWORD in .env}"

    assert services["redis"]["command"][1:3] == ["--requirepass", variable]
    for service in ours(services).values():
        assert service["environment"]["BERTH_REDIS_URL"] == f"redis://:{variable}@redis:6379/0"


def test_every_key_is_one_of_the_specification_and_has_its_type(compose, services):
    assert {key for key in compose if not key.startswith("x-")} <= TOP
    for name, service in services.items():
        for key, value in service.items():
            assert key in SERVICE, f"{name}.{key}"
            assert isinstance(value, SERVICE[key]), f"{name}.{key}"


def test_what_is_referred_to_is_there(compose, services):
    for service in services.values():
        for other, how in service.get("depends_on", {}).items():
            assert other in services
            assert how["condition"] in CONDITIONS
            assert how["condition"] != "service_healthy" or "healthcheck" in services[other]
        for volume in service.get("volumes", []):
            bound = volume.startswith("${")  # a folder of the host
            assert bound or volume.split(":")[0] in compose["volumes"]


def test_worker_and_agent_share_a_service_because_supervisors_live_in_it(services):
    commands = {name: each["command"] for name, each in ours(services).items()}

    assert commands == {"prepare": ["prepare"], "web": ["serve", "web"], "runner": ["serve", "runner"]}
    for words in commands.values():
        parser = load_command_class("orchestrator", words[0]).create_parser("manage.py", words[0])
        parser.parse_args(words[1:])


def test_every_process_gets_settings_that_berth_knows(services):
    for service in ours(services).values():
        given = {name: _filled(value) for name, value in service["environment"].items()}
        environment = read_environment({**given, "BERTH_HOME": "/srv/berth"})
        assert not environment.own_redis
        assert "postgresql" in str(environment.database["ENGINE"])


def test_every_setting_of_the_reference_is_passed(services):
    page = (ROOT / "docs/reference/settings.md").read_text()
    settings = set(re.findall(r"^\| `([A-Z_]+)` \|", page, re.MULTILINE))
    of_the_image = {
        "BERTH_HOME",
        "BERTH_BIND",
        "BERTH_PORT",
        "BERTH_SESSIONS_PORT",
    }  # people choose the published ports
    assert len(settings) > 40

    for service in ours(services).values():
        assert set(service["environment"]) == settings - of_the_image
        for name in settings - of_the_image - {"BERTH_REDIS_URL", "DATABASE_URL"}:
            assert service["environment"][name].startswith(f"${{{name}:-"), name


def test_data_and_files_that_settings_name_are_mounted_to_read(services):
    for service in ours(services).values():
        assert {volume.rpartition(":/")[2] for volume in service["volumes"]} == {
            "srv/berth",
            "data:ro",
            "settings:ro",
        }


def test_folders_of_the_host_are_made_before_docker_would_make_them_as_root(services):
    page = (ROOT / "docs/how-to/install.md").read_text()
    folders = {default for each in services["web"]["volumes"] for default in re.findall(r":-\./(\w+)}", each)}
    (made,) = re.findall(r"^mkdir -p (.+)\ndocker compose up", page, re.MULTILINE)

    assert set(made.split()) == folders == {"settings", "data"}
    assert folders <= set((ROOT / ".dockerignore").read_text().split())  # no data or secret goes into a build


def test_pages_have_an_image_without_torch_and_jobs_one_with_it(services):
    stages = re.split(r"^FROM .* AS (\w+)$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    steps = dict(zip(stages[1::2], stages[2::2], strict=True))

    assert {name: each["build"]["target"] for name, each in ours(services).items()} == {
        "prepare": "web",
        "web": "web",
        "runner": "runner",
    }
    assert "torch>=" not in steps["web"]
    for needed in ("torch>=", "bubblewrap", "gcc", "git"):
        assert needed in steps["runner"]
    images = {each["build"]["target"]: each["image"] for each in ours(services).values()}
    assert images["web"] != images["runner"]


def test_backups_use_the_tools_of_the_servers_version(services):
    text = (ROOT / "Dockerfile").read_text()

    major = "${POSTGRES_MAJOR:-16}"
    assert services["postgres"]["image"] == f"postgres:{major}-alpine"
    assert {each["build"]["args"]["POSTGRES_MAJOR"] for each in ours(services).values()} == {major}
    assert "ARG POSTGRES_MAJOR=16\n" in text
    assert '"postgresql-client-${POSTGRES_MAJOR}"' in text


def test_every_service_that_stays_tells_whether_it_works(services):
    assert {name for name, each in services.items() if "healthcheck" not in each} == {"prepare"}
    test = services["runner"]["healthcheck"]["test"]
    parser = load_command_class("orchestrator", test[3]).create_parser("manage.py", test[3])
    assert parser.parse_args(test[4:]).alive


def test_no_password_is_written_into_the_file(services):
    text = (ROOT / "docker-compose.yml").read_text()

    assert not re.search(r"PASSWORD: (?!\$)", text)
    assert not any("ports" in services[name] for name in ("redis", "postgres"))


def test_the_image_copies_everything_that_the_server_imports(tmp_path):
    """A tree of only what the Dockerfile copies starts."""
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if (copied := re.fullmatch(r"COPY (\S+) (\S+)", line)) is not None:
            target = tmp_path / ("" if copied[2] == "./" else copied[2])
            target = target / copied[1] if copied[2] == "./" else target
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(ROOT / copied[1])

    # Our environment has this checkout on its path, which the image has not.
    program = f"""
import runpy, sys
sys.path = [folder for folder in sys.path if folder != {str(ROOT)!r}]
sys.argv = ["manage.py", "check"]
runpy.run_path("manage.py", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=tmp_path,
        env={"BERTH_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def _filled(value: str) -> str:
    """``${NAME:-default}`` as compose fills it where nothing is set."""
    return re.sub(r"\$\{(\w+):[-?]([^}]*)\}", lambda hit: hit[2] if ":-" in hit[0] else "secret", value)
