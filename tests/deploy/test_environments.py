"""Each Python has an environment of its own, and the suite finds the Pythons of a machine."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests import pythons

ROOT = Path(__file__).resolve().parents[2]
THIS = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
CURRENT = ".".join(map(str, sys.version_info[:3]))


@pytest.fixture
def tree(tmp_path) -> Path:
    shutil.copy(ROOT / "make.py", tmp_path)
    folder: Path = tmp_path
    return folder


def made_with(tree: Path, python: Path, name: str = ".venv") -> None:
    (tree / name / "bin").mkdir(parents=True)
    (tree / name / "pyvenv.cfg").write_text(f"home = {python.parent}\nexecutable = {python}\n")


def in_tree(tree: Path, code: str) -> str:
    done = subprocess.run(
        [THIS, "-c", f"import make; {code}"], cwd=tree, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_first_python_gets_the_plain_folder(tree):
    assert in_tree(tree, "print(make.VENV.name)") == ".venv\n"

    made_with(tree, THIS)

    assert in_tree(tree, "print(make.VENV.name)") == ".venv\n"


def test_another_python_gets_a_folder_of_its_own(tree):
    made_with(tree, Path("/bin/sh"))

    assert in_tree(tree, "print(make.VENV.name, make.PYTHON.parents[1].name)") == (
        f".venv-{CURRENT} .venv-{CURRENT}\n"
    )


def test_a_python_that_only_its_owner_may_look_at_is_there(tree):
    """The clone of another person, whose environment was made with a Python in a closed home."""
    (tree / "home").mkdir(mode=0o000)

    told = in_tree(
        tree,
        "import os; from pathlib import Path; os.getuid() or os.setuid(65534); "
        "print(make.is_there(Path('home', 'python3')))",
    )

    assert told == "True\n"


def test_the_command_does_not_import_the_scripts_of_the_folder_where_it_runs(tree):
    """A person's random.py or types.py is not Python's."""
    (tree / ".venv" / "lib" / "python{}.{}".format(*sys.version_info[:2]) / "site-packages").mkdir(
        parents=True
    )
    (tree / ".venv" / "bin").mkdir()
    (tree / ".venv" / "bin" / "python").symlink_to(sys.executable)
    in_tree(tree, "make.link_project()")
    theirs = tree / "theirs"
    theirs.mkdir()
    for name in ("random", "types", "tokenize", "berth"):
        (theirs / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")

    done = subprocess.run(
        [tree / ".venv" / "bin" / "berth", "--version"],
        cwd=theirs,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("berth ")


def test_the_environment_of_a_python_that_is_gone_is_made_again_and_that_is_told(tree):
    made_with(tree, tree / "python3.11-that-was-removed")

    told = in_tree(tree, "make.clear_of_lost_python(); print(make.VENV.name)")

    assert "which is gone; making it again" in told
    assert told.endswith(".venv\n")
    assert not (tree / ".venv").exists()


def test_packages_whose_installation_was_cut_off_are_installed_again_and_that_is_told(tree):
    made_with(tree, THIS)
    packages = Path(in_tree(tree, "print(make.purelib())").strip())
    for name, files in {
        "torch-2.13.0": ["RECORD", "METADATA"],
        "six-1.17.0": ["RECORD", "INSTALLER"],
    }.items():
        about = packages / f"{name}.dist-info"
        about.mkdir(parents=True)
        for file in files:
            (about / file).touch()

    told = in_tree(tree, "make.clear_of_cut_off_packages()")

    assert "torch-2.13.0 was not installed to its end" in told
    assert [each.name for each in packages.iterdir()] == ["six-1.17.0.dist-info"]


def test_this_machines_pythons_are_found_and_environments_are_none_of_them():
    found = pythons.find_pythons()

    assert all(version >= (3, 11) for version in found)
    assert not any((path.parent.parent / "pyvenv.cfg").exists() for path in found.values())
    assert THIS in found.values() or sys.version_info[:3] in found


def test_every_part_is_a_test_file_that_is_there():
    assert not [part for part in pythons.PARTS if not (ROOT / part).is_file()]


def test_packages_are_borrowed_from_a_patch_release_of_the_same_version(tree, monkeypatch):
    monkeypatch.setattr(pythons, "ROOT", tree)
    made_with(tree, THIS, ".venv-3.11.7")
    pythons.packages_of(tree / ".venv-3.11.7", (3, 11)).mkdir(parents=True)

    assert pythons.find_lender((3, 11, 2)) == tree / ".venv-3.11.7"
    assert pythons.find_lender((3, 12, 1)) is None
