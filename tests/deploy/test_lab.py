"""What `make lab` takes from the lab page; the page as a whole is tried by `make lab`, on a bare Debian."""

from pathlib import Path

import pytest

from tests.deploy import lab
from tests.server import own_kernel


def test_the_pages_last_block_is_what_each_person_does():
    *administrator, person = map(lab.translated, lab.blocks(lab.PAGE.read_text()))

    assert all("berth login" not in block for block in administrator)
    assert [line.split()[:2] for line in person.splitlines()] == [["berth", "login"], ["berth", "run"]]
    assert "sudo" not in person


def test_the_page_makes_the_accounts_whose_jobs_are_run():
    commands = "".join(lab.blocks(lab.PAGE.read_text()))

    assert [name for name in lab.PEOPLE if f"people add {name} " not in commands] == []


def test_no_address_of_the_page_is_left_for_the_machine_to_look_up():
    commands = "".join(map(lab.translated, lab.blocks(lab.PAGE.read_text())))

    assert "<" not in commands
    assert "example.org" not in commands


def test_local_sources_of_packages_are_shown_in_the_machine(tmp_path: Path):
    listed = f":env:.find-links='{tmp_path}'\nglobal.index-url='https://mirror.lab.example/simple'\n"

    settings = lab.pip_settings(listed)["global"]

    assert dict(settings) == {
        "find-links": str(tmp_path),
        "index-url": "https://mirror.lab.example/simple",
    }
    assert lab.folders_of(settings.values()) == [Path(*tmp_path.parts[:3])]


def test_files_that_settings_of_packages_name_are_copied_into_the_machine(tmp_path: Path):
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("torch<3\n")

    lab.copy_files([str(constraints), "/nowhere.txt", str(tmp_path)], tmp_path / "root")

    copy = tmp_path / "root" / constraints.relative_to("/")
    assert copy.read_text() == "torch<3\n"
    assert [path for path in (tmp_path / "root").rglob("*") if path.is_file()] == [copy]


def test_a_machine_without_user_mode_linux_is_told_the_packages_that_bring_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))

    reason = own_kernel.missing()

    assert reason is not None
    assert "linux.uml" in reason
    assert own_kernel.PACKAGES in reason
