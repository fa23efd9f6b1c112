"""A Python in the home that the sandbox hides starts there all the same, and nothing else of the home is seen."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.supervisor.sandbox import interpreter
from tests.supervisor.conftest import Attempt

MakeAttempt = Callable[..., Attempt]
SHOWS = "import os, sys\nprint(sys.prefix, sys.base_prefix)\nprint(sorted(os.listdir({!r})))"


@pytest.fixture
def hidden_home() -> Iterator[Path]:
    """A home with a secret in it; not below /tmp, which is hidden anyway."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        home = Path(name).resolve()
        (home / ".ssh").mkdir()
        (home / ".ssh/key").write_text("hunter2")
        yield home


@pytest.fixture
def installation(hidden_home: Path) -> Path:
    """A Python of one's own in that home, without packages; its library is where its interpreter looks for it."""
    base = Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    root = hidden_home / "pythons/3.x"
    (root / "bin").mkdir(parents=True)
    shutil.copy(Path(os.path.realpath(sys._base_executable)), root / f"bin/{version}")  # type: ignore[attr-defined]
    (root / "bin/python3").symlink_to(version)
    ignored = shutil.ignore_patterns("site-packages", "dist-packages", "test", "__pycache__", "config-*")
    shutil.copytree(sysconfig.get_path("stdlib"), root / "lib" / version, ignore=ignored)
    for library in base.glob("lib/libpython*"):
        shutil.copy(library, root / "lib")
    started = subprocess.run([root / "bin/python3", "-c", ""], capture_output=True, check=False, env={})
    if started.returncode:
        pytest.skip(f"this Python cannot be moved: {started.stderr.decode()}")
    return root


@pytest.mark.usefixtures("needs_bwrap")
@pytest.mark.parametrize("symlinks", [True, False], ids=["linked", "copied"])
def test_a_virtual_environment_in_the_home_runs(
    make_attempt: MakeAttempt, hidden_home: Path, installation: Path, symlinks: bool
) -> None:
    """``make`` copies the interpreter, so that only pyvenv.cfg says where its library is."""
    subprocess.run(
        [
            *(installation / "bin/python3", "-m", "venv", "--without-pip"),
            *(() if symlinks else ("--copies",)),
            hidden_home / "env",
        ],
        check=True,
    )
    attempt = make_attempt(
        SHOWS.format(str(hidden_home)), level=1, python=str(hidden_home / "env/bin/python")
    )

    attempt.run(HOME=str(hidden_home))

    lines = attempt.log().splitlines()
    assert lines == [f"{hidden_home}/env {installation}", "['env', 'pythons']"], attempt.everything()


@pytest.mark.usefixtures("needs_bwrap")
def test_links_that_lead_to_the_interpreter_are_there(
    make_attempt: MakeAttempt, hidden_home: Path, installation: Path
) -> None:
    """A folder of versions that is a link, and a link to the interpreter beside the keys of a person."""
    (hidden_home / "current").symlink_to("pythons/3.x")
    (hidden_home / "bin").mkdir()
    (hidden_home / "bin/python").symlink_to(hidden_home / "current/bin/python3")
    attempt = make_attempt(SHOWS.format(str(hidden_home)), level=1, python=str(hidden_home / "bin/python"))

    attempt.run(HOME=str(hidden_home))

    assert attempt.log().splitlines()[1] == "['bin', 'current', 'pythons']", attempt.everything()


@pytest.mark.usefixtures("needs_bwrap")
def test_a_python_installed_into_the_home_itself_does_not_uncover_it(
    make_attempt: MakeAttempt, hidden_home: Path, installation: Path
) -> None:
    for name in ("bin", "lib"):
        (installation / name).rename(hidden_home / name)
    (hidden_home / "pythons/3.x").rmdir()
    attempt = make_attempt(SHOWS.format(str(hidden_home)), level=1, python=str(hidden_home / "bin/python3"))

    attempt.run(HOME=str(hidden_home))

    assert attempt.log().splitlines()[1] == "['bin', 'lib']", attempt.everything()


def test_the_roots_of_an_environment_are_its_own_folder_and_its_installation(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", symlinks=False)

    found = interpreter.roots(tmp_path / "env/bin/python")

    assert tmp_path / "env" in found
    base = Path(os.path.realpath(sys._base_executable)).parent.parent  # type: ignore[attr-defined]
    assert base in [Path(os.path.realpath(root)) for root in found]


def test_a_path_with_links_is_walked_to_where_it_ends(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "a/c").symlink_to("../b/d")
    (tmp_path / "a/d").mkdir()

    *links, (end, _) = interpreter.walk_links(tmp_path / "b/c/e")

    assert links == [(tmp_path / "b", "a"), (tmp_path / "a/c", "../b/d"), (tmp_path / "b", "a")]
    assert end == tmp_path / "a/d/e"


def test_links_in_circles_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    assert list(interpreter.walk_links(tmp_path / "a"))
