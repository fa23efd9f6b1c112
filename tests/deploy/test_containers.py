"""What `make containers` takes from the install page and the compose file; all of it is tried by `make containers`."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy import containers

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_starts_the_set_and_adds_a_person():
    start, person = containers.blocks(containers.PAGE.read_text())

    assert "docker compose up --detach --build" in start
    assert start.strip().endswith(
        "docker compose logs prepare"
    )  # its output is where the password is looked for
    assert "people add ana --role submitter" in person
    assert "token ana " in person.strip().splitlines()[-1]  # the last word that the lines print is the token


def test_lines_about_ana_are_made_lines_about_another_person():
    _, person = containers.blocks(containers.PAGE.read_text())

    lines = containers.for_person(person, "ben")

    assert "manage.py people add ben " in lines
    assert "manage.py token ben " in lines


def test_each_image_that_ours_are_built_on_has_a_stand_in():
    made = set(
        re.findall(r"^FROM .* AS (\w+)$", (containers.STAND_INS / "Dockerfile").read_text(), re.MULTILINE)
    )
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    bases = re.findall(r"^FROM (\w+):", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    named = {each["image"].partition(":")[0] for each in services if "build" not in each}

    assert made == {*bases, *named}


def test_limits_that_containers_get_are_no_higher_than_this_machines():
    given = containers.limits()

    configuration = containers._configuration()

    assert all(f'"{name}={value}:{value}"' in configuration for name, value in given.items())


def test_podman_is_called_without_the_dependencies_that_it_would_refuse(tmp_path: Path):
    for name, text in {
        "podman-here": containers._PODMAN.format(kept=tmp_path),
        "podman": '#!/bin/sh\nprintf "%s\\n" "$@"\n',
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    said = subprocess.run(
        [tmp_path / "podman-here", "create", "--requires=a,b", "--label", "two words"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert said.splitlines()[-3:] == ["create", "--label", "two words"]


def test_a_machine_without_podman_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    told = r"podman, git(, uv)?(, .*)? is not installed" if os.geteuid() == 0 else r".* needs root"

    assert re.fullmatch(told, containers.missing() or "")
