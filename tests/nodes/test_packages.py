"""The packages of jobs on another server: built by the real uv in a process apart, from tiny wheels in a folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.nodes.packages import Packages, Wanted
from orchestrator.nodes.places import BASE
from tests.jobs.wheels import make_wheel
from tests.waiting import wait_until

KEY, OTHER = "a" * 40, "b" * 40  # names of environments on the first server
TINY = Wanted(KEY, "tinylib==1.0\n")
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


def build(packages: Packages, wanted: Wanted) -> None:
    """Build, once the program of the build before has ended, and wait for the answer."""

    def is_answered() -> bool:
        packages.build(wanted)
        stock = packages.look([wanted.key])
        return bool(stock.ready or stock.failed)

    wait_until(is_answered, limit_s=WITHIN_S)


def test_environment_is_built_from_the_lock_of_the_first_server(packages, tmp_path):
    assert packages.look([KEY]).lacking == (KEY,)
    build(packages, TINY)

    built = packages.place(KEY)
    assert built is not None
    assert built.root.is_relative_to(tmp_path / "node/environments/built")
    assert list(built.root.glob("lib/python*/site-packages/tinylib.py"))


def test_launch_record_of_the_first_server_names_what_is_here(packages, tmp_path):
    theirs = tmp_path / "node/environments/built" / KEY
    record = {
        "python": f"{theirs}/bin/python",
        "env": {"PATH": f"{theirs}/bin:/usr/bin"},
        "python_roots": ["/x"],
    }

    assert packages.with_ours(dict(record), KEY, ["/usr"]) is None
    build(packages, TINY)
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
    build(packages, Wanted(OTHER, "neverheardof==1.0\n"))
    build(packages, TINY)

    stock = packages.look([OTHER, KEY])
    assert (stock.ready, list(stock.failed), stock.lacking) == ((KEY,), [OTHER], ())
    assert "neverheardof" in stock.failed[OTHER]


def test_build_that_is_killed_has_failed_and_does_not_begin_again_at_once(packages):
    packages.build(TINY)
    assert packages.look([KEY]) == ((), {}, ())  # at work
    assert packages._build is not None
    packages._build.kill()
    wait_until(lambda: packages.look([KEY]).failed, limit_s=WITHIN_S)

    stock = packages.look([KEY])
    assert stock.lacking == ()
    assert "ended with status -9" in stock.failed[KEY]


def test_settings_of_the_server_that_are_refused_are_told_to_the_first_one(packages, monkeypatch):
    monkeypatch.setenv("BERTH_PORT", "none")
    build(packages, TINY)

    assert "BERTH_PORT" in packages.look([KEY]).failed[KEY]


def test_what_was_built_before_a_restart_is_looked_at_again_before_it_is_used(packages, tmp_path):
    build(packages, TINY)

    again = Packages(tmp_path / "node")
    assert again.look([KEY]).lacking == (KEY,)
    build(again, TINY)
    assert again.look([KEY]).ready == (KEY,)
    again.close()
