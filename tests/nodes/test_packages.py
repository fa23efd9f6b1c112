"""The packages of jobs on another server: built by the real uv in a process apart, from tiny wheels in a folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.nodes.packages import Packages, Wanted
from orchestrator.nodes.places import BASE
from tests.jobs.wheels import make_wheel
from tests.waiting import wait_until

KEY, OTHER = "a" * 40, "b" * 40  # names of environments on the first server
WITHIN_S = 120


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_wheel(tmp_path / "wheels", "tinylib")
    monkeypatch.setenv("BERTH_WHEELS", str(tmp_path / "wheels"))
    return tmp_path / "wheels"


@pytest.fixture
def packages(tmp_path: Path, wheels: Path) -> Iterator[Packages]:
    found = Packages(tmp_path / "node")
    yield found
    found.close()


def test_environment_is_built_from_the_lock_of_the_first_server(packages, tmp_path):
    wanted = [Wanted(KEY, "tinylib==1.0\n")]

    assert packages.furnish(wanted).ready == ()
    wait_until(lambda: packages.furnish(wanted).ready == (KEY,), limit_s=WITHIN_S)

    built = packages.place(KEY)
    assert built is not None
    assert built.root.is_relative_to(tmp_path / "node/environments/built")
    assert list(built.root.glob("lib/python*/site-packages/tinylib.py"))


def test_launch_record_of_the_first_server_names_what_is_here(packages, tmp_path):
    wanted = [Wanted(KEY, "tinylib==1.0\n")]
    theirs = tmp_path / "node/environments/built" / KEY
    record = {
        "python": f"{theirs}/bin/python",
        "env": {"PATH": f"{theirs}/bin:/usr/bin"},
        "python_roots": ["/x"],
    }

    assert packages.with_ours(dict(record), KEY, ["/usr"]) is None
    wait_until(lambda: packages.furnish(wanted).ready == (KEY,), limit_s=WITHIN_S)
    found = packages.with_ours(dict(record), KEY, ["/usr"])

    built = packages.place(KEY)
    assert found is not None
    assert built is not None
    assert found["python"] == str(built.python)
    assert found["env"] == {"PATH": f"{built.root}/bin:/usr/bin"}
    assert found["python_roots"] == [
        "/usr",
        str(built.root),
        str(tmp_path / "node/environments/bytecode"),
        str(BASE),
    ]


def test_part_of_a_run_on_the_first_server_has_the_packages_of_that_server(tmp_path):
    here = Packages(tmp_path / "nodes/here")
    moved = {"python": f"{tmp_path}/nodes/here/environments/built/{KEY}/bin/python"}

    found = here.moved_back(moved, tmp_path / "environments")

    assert found == {"python": f"{tmp_path}/environments/built/{KEY}/bin/python"}


def test_environment_that_cannot_be_built_says_why_and_holds_up_no_other(packages):
    wanted = [Wanted(OTHER, "neverheardof==1.0\n"), Wanted(KEY, "tinylib==1.0\n")]

    wait_until(lambda: packages.furnish(wanted).ready == (KEY,), limit_s=WITHIN_S)

    failed = packages.furnish(wanted).failed
    assert list(failed) == [OTHER]
    assert "neverheardof" in failed[OTHER]


def test_what_was_built_before_a_restart_is_looked_at_again_before_it_is_used(packages, tmp_path, wheels):
    wanted = [Wanted(KEY, "tinylib==1.0\n")]
    wait_until(lambda: packages.furnish(wanted).ready == (KEY,), limit_s=WITHIN_S)

    again = Packages(tmp_path / "node")
    assert again.furnish(wanted).ready == ()
    wait_until(lambda: again.furnish(wanted).ready == (KEY,), limit_s=WITHIN_S)
    again.close()
