"""The built distribution works where there is no clone: the command alone, and a whole server."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
import venv
import zipfile
from email import message_from_bytes
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest

import berth
from tests.system.server import Prepared, free_port
from tests.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("berth", "orchestrator", "dashboard", "training")
INSIDE = {
    "templates": "dashboard/templates",
    "static": "dashboard/static",
    "examples": "orchestrator/examples",
}
FILES = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "manage.py",
    "requirements",
)
PROGRAMS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as uv builds it: from the source distribution, so that this holds everything, too."""
    tree = tmp_path_factory.mktemp("tree")
    for name in (*PACKAGES, *INSIDE):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    words = ["build", "--offline", "--no-build-isolation", "--python", sys.executable, "--quiet"]
    done = subprocess.run([PROGRAMS / "uv", *words, tree], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next((tree / "dist").glob("*.whl"))


def files_of_the_clone() -> set[str]:
    found = set()
    for folder, inside in {**{name: name for name in PACKAGES}, **INSIDE}.items():
        paths = [path for path in (ROOT / folder).rglob("*") if path.is_file()]
        found |= {
            f"{inside}/{path.relative_to(ROOT / folder)}"
            for path in paths
            if "__pycache__" not in path.parts and path.suffix != ".po"  # only people read these
        }
    return found


def test_wheel_holds_every_file_that_a_clone_runs_with_and_nothing_else(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}

    assert names == files_of_the_clone()
    assert {"training/child/sitecustomize.py", "orchestrator/migrations/0001_initial.py"} <= names


def about(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def test_metadata_name_licence_readme_and_version(wheel):
    told = about(wheel)

    assert (told["Name"], told["Version"]) == ("berth-gpu", berth.__version__)
    assert (told["License-Expression"], told["License-File"]) == ("Apache-2.0", "LICENSE")
    assert told["Description-Content-Type"] == "text/markdown"
    assert str(told.get_payload()).startswith("# Berth")
    assert "Programming Language :: Python :: 3.11" in told.get_all("Classifier", [])
    assert set(told.get_all("Provides-Extra", [])) == {
        "server",
        "training",
        "mcp",
        "ldap",
        "nodes",
        "kubernetes",
    }


def installed(wheel: Path, folder: Path) -> Path:
    """A new environment with the wheel and nothing that it needs."""
    venv.EnvBuilder(symlinks=True).create(folder)
    python = folder / "bin" / "python"
    words = [
        "pip",
        "install",
        "--offline",
        "--no-deps",
        "--compile-bytecode",
        "--quiet",
        "--python",
        str(python),
        str(wheel),
    ]
    subprocess.run([str(PROGRAMS / "uv"), *words], check=True)
    return folder


def library(environment: Path) -> Path:
    return next((environment / "lib").glob("python*/site-packages"))


def link_needs(environment: Path, names: list[str]) -> None:
    """Make distributions of the tests' environment importable, with what these need in turn."""
    done: set[str] = set()
    while names:
        name = names.pop()
        if name in done:
            continue
        done.add(name)
        distribution = metadata.distribution(name)
        needs = [each for each in distribution.requires or [] if "extra ==" not in each]
        for each in needs:
            needed = re.split(r"[^\w.-]", each, maxsplit=1)[0]
            try:
                metadata.distribution(needed)
            except metadata.PackageNotFoundError:
                continue  # for another platform or Python
            names.append(needed)
        for top in {Path(file.parts[0]) for file in distribution.files or [] if file.parts[0] != ".."}:
            link = library(environment) / top
            if top.name != "__pycache__" and not link.is_symlink():
                link.symlink_to(Path(str(distribution.locate_file(top))))


@pytest.fixture(scope="module")
def client(wheel, tmp_path_factory) -> Path:
    environment = installed(wheel, tmp_path_factory.mktemp("client"))
    link_needs(environment, [re.split(r"[<>=]", each)[0] for each in _needs_of_the_client(wheel)])
    return environment


def _needs_of_the_client(wheel: Path) -> list[str]:
    return [each for each in about(wheel).get_all("Requires-Dist", []) if "extra ==" not in each]


def call(
    environment: Path, *words: object, folder: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return subprocess.run(
        [str(environment / "bin" / str(words[0])), *map(str, words[1:])],
        cwd=folder,
        env={**kept, "HOME": str(folder), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def test_the_command_alone_says_its_version_and_its_commands(client, tmp_path):
    version = call(client, "berth", "--version", folder=tmp_path)
    helped = call(client, "berth", "--help", folder=tmp_path)

    assert version.stdout == f"berth {berth.__version__}\n"
    assert helped.returncode == 0
    assert {"run", "watch", "up", "demo", "doctor"} <= set(helped.stdout.split())


def test_the_client_alone_loads_nothing_of_a_server_and_no_framework(client, tmp_path):
    program = (
        "import json, sys, berth.client; print(json.dumps(sorted({n.split('.')[0] for n in sys.modules})))"
    )

    loaded = set(json.loads(call(client, "python", "-c", program, folder=tmp_path).stdout))

    assert "httpx" in loaded
    assert not loaded & {"django", "orchestrator", "dashboard", "training", "torch", "numpy", "pydantic"}


@pytest.mark.parametrize(
    ("command", "extra"), [("up", "berth-gpu[server]"), ("demo", "berth-gpu[server,training]")]
)
def test_a_server_command_of_the_client_alone_names_the_extra_that_it_needs(client, tmp_path, command, extra):
    done = call(client, "berth", command, folder=tmp_path)

    assert done.returncode == 2
    assert f"pip install '{extra}'" in done.stderr
    assert f"--from '{extra}' berth {command}" in done.stderr


@pytest.mark.slow
def test_a_server_starts_in_an_empty_folder_and_its_sign_in_page_has_its_style(
    wheel: Path, prepared: Prepared, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    shutil.copytree(prepared.home, home)  # migrations and static files take most of a first start
    collected = (home / "static" / ".stamp").stat().st_mtime_ns
    environment = installed(wheel, tmp_path / "env")
    (library(environment) / "needs.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    work = tmp_path / "work"
    (work / "training").mkdir(parents=True)  # a folder of somebody's own, which is not ours
    (work / "training" / "__init__.py").write_text("raise ImportError('the wrong one')\n")
    port = free_port()
    variables = {"BERTH_HOME": str(home), "BERTH_PORT": str(port), "BERTH_DEVICES": "cpu:1"}
    log = tmp_path / "up.log"
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [environment / "bin" / "berth", "up"],
            cwd=work,
            env={**kept, "HOME": str(work), **variables},
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: "Berth is at" in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        page = _get(port, "/login")
        styles = re.findall(r'<link[^>]*href="([^"]+\.css)"', page)
        assert styles
        assert all("--" in _get(port, style) for style in styles)  # tokens of ours
        # The wheel has the clone's static files, so none had to be collected again.
        assert (home / "static" / ".stamp").stat().st_mtime_ns == collected
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
    assert process.returncode == 0, log.read_text()


def _get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())
