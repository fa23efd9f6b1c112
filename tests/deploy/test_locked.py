"""Locked packages are installed by uv where it can be told pip's settings, else by pip."""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy import locked
from deploy.locked import OnlyPip, entry_of, read_settings, uv_variables
from tests.jobs.wheels import make_wheel

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")
Install = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment, which has pip alone."""
    folder = tmp_path_factory.mktemp("machine")
    venv.EnvBuilder(with_pip=True).create(folder / "venv")
    return folder


@pytest.fixture
def install(machine: Path, tmp_path: Path) -> Install:
    """Install a wheel by a lock file; returns who did it, and what was said."""

    def run(uv: str | Path | None = None, **settings: str) -> tuple[str, str]:
        name = f"own{len(list((machine / 'venv').glob('lib/*/site-packages/own*.dist-info')))}"
        wheel = make_wheel(tmp_path / "wheels", name)
        lock = tmp_path / "lock.txt"
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        lock.write_text(f"{name}==1.0 \\\n    --hash=sha256:{digest}\n")
        program = machine / "venv" / "bin" / "uv"
        program.unlink(missing_ok=True)
        if isinstance(uv, Path):
            shutil.copy(uv, program)
        elif uv is not None:
            program.write_text(uv)
            program.chmod(0o755)
        of_pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel.parent)}
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
        done = subprocess.run(
            [machine / "venv" / "bin" / "python", "-m", "deploy.locked", lock],
            cwd=ROOT,
            env={**kept, "UV_CACHE_DIR": str(machine / "cache"), **of_pip, **settings},
            capture_output=True,
            text=True,
            check=True,
        )
        (info,) = (machine / "venv").glob(f"lib/*/site-packages/{name}-1.0.dist-info")
        return (info / "INSTALLER").read_text().strip(), done.stdout

    return run


def test_uv_installs_from_where_pip_is_told_to(install: Install) -> None:
    assert install(UV) == ("uv", "")


def test_uv_compiles_nothing_where_pip_is_told_not_to(install: Install, machine: Path) -> None:
    assert install(UV, PIP_NO_COMPILE="1") == ("uv", "")

    newest = max(machine.glob("venv/lib/*/site-packages/own*.py"))
    assert not list(newest.parent.glob(f"__pycache__/{newest.stem}.*"))


@pytest.mark.parametrize(
    ("uv", "words"),
    [(None, ""), ("#!/bin/sh\nexit 1\n", ""), ('#!/bin/sh\n[ "$1" = --version ]\n', "uv could not install")],
    ids=["its program is missing", "its program does not run", "it installs nothing"],
)
def test_pip_installs_where_uv_does_not(install: Install, uv: str | None, words: str) -> None:
    who, said = install(uv)

    assert who == "pip"
    assert words in said


def test_pip_installs_where_uv_cannot_be_told_a_setting(install: Install) -> None:
    who, said = install(UV, PIP_ONLY_BINARY=":all:")

    assert who == "pip"
    assert "no setting like pip's only-binary" in said


def test_settings_of_an_install_go_before_those_of_all_and_variables_before_both() -> None:
    text = "\n".join(
        (
            ":env:.find-links='/wheels /more'",
            "freeze.timeout='10'",
            "global.extra-index-url='\\nhttps://a/simple\\nhttps://b/simple'",
            "global.index-url='https://one/simple'",
            "global.find-links='/other'",
            "install.index-url='https://two/simple'",
        )
    )

    variables = uv_variables(read_settings(text), ROOT / "requirements" / "base.txt")

    assert variables["UV_DEFAULT_INDEX"] == "https://two/simple"
    assert variables["UV_INDEX"] == "https://a/simple https://b/simple"
    assert variables["UV_FIND_LINKS"] == "/wheels,/more"
    assert "UV_HTTP_TIMEOUT" not in variables


@pytest.mark.parametrize(
    ("line", "is_left_to_pip"),
    [("torch<=2.14.1  # not locked", False), ("Django<6", True), ("-c more.txt", True)],
)
def test_constraint_on_a_locked_package_is_left_to_pip(
    tmp_path: Path, line: str, is_left_to_pip: bool
) -> None:
    constraints, lock = tmp_path / "constraints.txt", tmp_path / "lock.txt"
    constraints.write_text(f"# of this server\n\n{line}\n")
    lock.write_text("django==5.2 \\\n    --hash=sha256:00\n")

    if is_left_to_pip:
        with pytest.raises(OnlyPip, match="constraint"):
            uv_variables({"constraint": str(constraints)}, lock)
    else:
        uv_variables({"constraint": str(constraints)}, lock)


def test_uv_comes_first_with_the_version_and_hashes_of_the_lock() -> None:
    for name in ("base", "docs", "test"):
        entry = entry_of("uv", (ROOT / "requirements" / f"{name}.txt").read_text())

        assert entry is not None
        assert entry.startswith("uv==")
        assert entry.count("--hash=sha256:") > 1
        assert entry.count("==") == 1
    assert entry_of("uv", "uvloop==1.0\n") is None


def test_settings_of_pip_are_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example.org/simple")
    monkeypatch.setenv("PIP_QUIET", "1")

    assert locked.pip_settings()["index-url"] == "https://mirror.example.org/simple"
