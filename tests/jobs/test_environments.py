"""The packages of jobs, built by the real uv from tiny wheels in a folder."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from orchestrator.jobs.background import locked
from orchestrator.jobs.environments import building, bytecode, preparing, requests, upkeep
from orchestrator.jobs.environments.base import server_base
from orchestrator.jobs.environments.declared import Declared
from orchestrator.jobs.launch import isolation, launcher
from orchestrator.models import Environment, EnvironmentState, ExitKind, Job, JobState
from orchestrator.scheduler import passes
from orchestrator.scheduler import waiting as waits
from orchestrator.store.layout import BuiltEnvironment, Home
from orchestrator.supervisor.protocol.records import read_record
from tests.jobs.wheels import make_source, make_wheel
from tests.system.server import REPOSITORY
from tests.waiting import wait_until


@pytest.fixture
def wheels(home, settings, tmp_path: Path) -> Path:
    """The only folder that packages come from."""
    folder = tmp_path / "wheels"
    make_wheel(folder, "tinylib", "1.0", needs=["tinydep"])
    make_wheel(folder, "tinylib", "2.0", needs=["tinydep>=2"])
    make_wheel(folder, "tinydep", "1.0", package="tinypack")
    make_wheel(folder, "tinydep", "2.0")
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, wheels=folder)
    return folder


def prepared(*lines: str, **fields: Any) -> Environment:
    """The row of a request after its build."""
    row = requests.row_for(Declared("requirements.txt", lines=lines, **fields), timezone.now())
    preparing.prepare(row.pk)
    row.refresh_from_db()
    return row


def built(home: Home, row: Environment) -> BuiltEnvironment:
    assert row.state == EnvironmentState.READY, row.why
    return home.environments.built(row.key)


def run(place: BuiltEnvironment, code: str) -> str:
    """What a program prints in an environment."""
    done = subprocess.run(
        [place.python, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env={"LANG": "C.UTF-8"},
    )
    return done.stdout.strip()


def versions(row: Environment) -> dict[str, str]:
    return {each["name"]: each["version"] for each in row.packages}


@pytest.mark.django_db(transaction=True)
def test_environment_has_its_packages_the_servers_torch_and_the_library_and_nothing_else(home, wheels):
    row = prepared("tinylib<2")

    found = json.loads(
        run(
            built(home, row),
            "import importlib.util as u, json, tinylib, tinydep\n"
            "names = ('torch', 'numpy', 'training', 'django', 'pydantic', 'orchestrator')\n"
            "there = [name for name in names if u.find_spec(name)]\n"
            "print(json.dumps([tinylib.__version__, tinydep.__version__, there]))",
        )
    )
    assert found == ["1.0", "2.0", ["torch", "numpy", "training"]]
    assert versions(row) == {"tinylib": "1.0", "tinydep": "2.0"}
    assert row.own_torch is False


@pytest.mark.django_db(transaction=True)
def test_packages_of_the_request_win_over_those_of_the_base(home, wheels):
    make_wheel(wheels, "filelock", "99.0")

    row = prepared("filelock==99.0", "tinydep")

    code = "import filelock, importlib.metadata as m; print(filelock.__version__, m.version('torch'))"
    place = built(home, row)
    assert run(place, code) == f"99.0 {server_base().torch}"
    assert os.access(place.python.with_name("torchrun"), os.X_OK)


@pytest.mark.django_db(transaction=True)
def test_pinned_torch_is_installed_and_nothing_of_the_servers_is_seen(home, wheels):
    make_wheel(wheels, "torch", "1.0")

    row = prepared("torch==1.0")

    code = "import torch, importlib.util as u; print(torch.__version__, u.find_spec('numpy'), bool(u.find_spec('training')))"
    assert run(built(home, row), code) == "1.0 None True"
    assert row.own_torch


@pytest.mark.django_db(transaction=True)
def test_another_torch_brings_what_it_needs_also_in_the_servers_own_version(home, wheels):
    version = server_base().versions["filelock"]
    make_wheel(wheels, "filelock", version)
    make_wheel(wheels, "torch", "1.0", needs=[f"filelock=={version}"])  # an index may have a newer one

    row = prepared("torch==1.0")

    assert run(built(home, row), "import filelock; print(filelock.__version__)") == version
    assert versions(row) == {"filelock": version, "torch": "1.0"}


@pytest.mark.django_db(transaction=True)
def test_package_that_needs_another_torch_brings_it(home, wheels):
    make_wheel(wheels, "torch", "1.0")
    make_wheel(wheels, "oldlib", needs=["torch==1.0"])

    row = prepared("oldlib")

    assert versions(row) == {"oldlib": "1.0", "torch": "1.0"}


@pytest.mark.django_db(transaction=True)
def test_equal_requests_share_a_row_and_equal_locks_share_their_files(home, wheels):
    first = prepared("tinylib==1.0", "tinydep==1.0")
    same = requests.row_for(
        Declared("requirements.txt", lines=("tinylib==1.0", "tinydep==1.0")), timezone.now()
    )
    other_way = prepared("tinydep==1.0", "tinylib<2")

    assert same == first
    assert other_way != first
    assert other_way.key == first.key
    tops = {path.name for path in home.environments.root.joinpath("built").iterdir()}
    assert tops == {first.key}


@pytest.mark.django_db(transaction=True)
def test_environments_are_hard_links_into_one_cache(home, wheels):
    places = [built(home, prepared("tinydep==1.0")), built(home, prepared("tinydep==1.0", "tinylib==1.0"))]

    inodes = {next(place.root.rglob("tinydep.py")).stat().st_ino for place in places}
    assert len(inodes) == 1


@pytest.mark.django_db(transaction=True)
def test_modules_are_compiled_once_for_all_environments_that_share_them(home, wheels):
    places = [built(home, prepared("tinydep==1.0")), built(home, prepared("tinydep==1.0", "tinylib==1.0"))]

    for place in places:
        bytecode.compile_modules(place)

    modules = [next(place.root.rglob("tinypack/__init__.py")) for place in places]
    caches = [path.parent / "__pycache__" for path in modules]
    assert len({path.resolve() for path in caches}) == 1
    code = "import tinypack; print(tinypack.__cached__, tinypack.where.__code__.co_filename)"
    assert [run(place, code) for place in places] == [
        f"{next(cache.iterdir())} {source}" for cache, source in zip(caches, modules, strict=True)
    ]


@pytest.mark.django_db(transaction=True)
def test_versions_are_resolved_again_after_a_day_but_a_clone_keeps_its_lock(home, wheels):
    row = prepared("tinylib")
    Environment.objects.filter(pk=row.pk).update(created_at=timezone.now() - timedelta(days=2))
    row.refresh_from_db()

    assert requests.again(row, timezone.now()) == row
    assert requests.row_for(Declared("train.py", lines=("tinylib",)), timezone.now()) != row


@pytest.mark.django_db(transaction=True)
def test_source_is_built_where_it_cannot_reach_what_others_use(home, wheels):
    """A setup may do anything, so it must not run with the cache that environments of others are linked to."""
    shared = home.environments.cache
    make_source(
        wheels,
        "fromsource",
        first=f"Path({str(shared)!r}).mkdir(parents=True, exist_ok=True)\nPath({str(shared / 'touched')!r}).touch()",
    )
    setuptools = next(part for part in server_base().parts if part.name == "setuptools")
    pack_installed(wheels, setuptools.entries, setuptools.name, setuptools.version)

    row = prepared("fromsource")

    assert run(built(home, row), "import fromsource; print(fromsource.built)") == "True"
    assert not (shared / "touched").exists() or not sandboxed()


def sandboxed() -> bool:
    return isolation.level() > 0


def pack_installed(folder: Path, entries: Any, name: str, version: str) -> None:
    """An installed distribution as a wheel again."""
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for entry in entries:
            for path in entry.rglob("*") if entry.is_dir() else [entry]:
                if path.is_file() and "__pycache__" not in path.parts and path.name != "RECORD":
                    wheel.write(path, path.relative_to(entry.parent))
        wheel.writestr(f"{name}-{version}.dist-info/RECORD", "")


@pytest.fixture
def waiting(make_job: Callable[..., Job], store_script, make_device) -> Callable[[Environment], Job]:
    """A queued job that needs an environment, with a device that is free for it."""
    make_device()

    def make(row: Environment, text: bytes = b"print('hello')\n") -> Job:
        return make_job(bundle=store_script(text), environment=row)

    return make


@pytest.mark.parametrize(
    ("lines", "cause", "words"),
    [
        (["tinylib==1.0", "tinydep>=3"], "unknown", "tinydep>=3"),
        (["tinylib==2.0", "tinydep==1.0"], "conflict", "depends on tinydep>=2"),
        (["nosuchlib"], "unknown", "nosuchlib was not found"),
    ],
)
@pytest.mark.django_db(transaction=True)
def test_environment_that_cannot_be_resolved_fails_its_jobs_with_the_resolvers_words(
    home, wheels, waiting, lines, cause, words
):
    row = requests.row_for(Declared("requirements.txt", lines=tuple(lines)), timezone.now())
    job = waiting(row)

    preparing.prepare(row.pk)

    job.refresh_from_db()
    assert (job.state, job.exit_kind, job.attempts.count()) == (JobState.FAILED, ExitKind.ENVIRONMENT, 0)
    assert job.ending["facts"]["cause"] == cause
    assert words in job.exit_detail
    assert "requirements.txt" in job.exit_detail


@pytest.mark.django_db(transaction=True)
def test_package_that_needs_a_compiler_says_so(home, wheels, waiting):
    make_source(
        wheels,
        "needscc",
        first="raise SystemExit(\"error: command 'gcc' failed: No such file or directory\")",
    )
    setuptools = next(part for part in server_base().parts if part.name == "setuptools")
    pack_installed(wheels, setuptools.entries, setuptools.name, setuptools.version)

    row = requests.row_for(Declared("--with", lines=("needscc",)), timezone.now())
    job = waiting(row)
    preparing.prepare(row.pk)

    job.refresh_from_db()
    assert job.ending["facts"]["cause"] == "compiler"
    assert "has to be compiled" in job.exit_detail
    assert "needscc" in job.exit_detail


@pytest.mark.django_db(transaction=True)
def test_missing_network_is_waited_for(home, settings, waiting, monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    for name in ("UV_INDEX", "UV_FIND_LINKS", "UV_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    row = requests.row_for(Declared("train.py", lines=("tinylib",)), timezone.now())
    job = waiting(row)

    preparing.prepare(row.pk)
    passes.run_pass()

    row.refresh_from_db()
    job.refresh_from_db()
    assert (row.state, row.tries) == (EnvironmentState.WAITING, 1)
    assert row.next_try_at is not None
    assert (job.state, job.wait_code) == (JobState.QUEUED, "environment")
    assert "could not be reached; next try in" in waiting_sentence(job)


def waiting_sentence(job: Job) -> str:
    return waits.sentence(job, timezone.now(), "")


@pytest.mark.django_db(transaction=True)
def test_job_waits_for_its_packages_and_blocks_nobody(home, wheels, waiting, make_job, store_script):
    row = requests.row_for(Declared("train.py", lines=("tinylib",)), timezone.now())
    job = waiting(row)
    behind = make_job(bundle=store_script())

    passes.run_pass()

    job.refresh_from_db()
    behind.refresh_from_db()
    assert (job.state, job.wait_code) == (JobState.QUEUED, "environment")
    assert waiting_sentence(job) == "Waits for the packages of train.py."
    assert behind.state == JobState.STARTING


@pytest.mark.django_db(transaction=True)
def test_job_starts_once_its_packages_are_there_and_runs_with_them(home, wheels, waiting):
    row = requests.row_for(Declared("train.py", lines=("tinylib==1.0",)), timezone.now())
    job = waiting(
        row,
        b"import os, tinylib, training, sys\n"
        b"open(os.environ['BERTH_OUTPUT_DIR'] + '/said', 'w').write(tinylib.__version__ + ' ' + sys.prefix)\n",
    )
    preparing.prepare(row.pk)
    passes.run_pass()
    attempt = job.attempts.get()
    launcher.start(attempt)

    folder = home.job(job.pk)
    wait_until(folder.attempt(1).exit.exists)
    assert (read_record(folder.attempt(1).exit) or {})["kind"] == "ok"
    row.refresh_from_db()
    assert (folder.output / "said").read_text() == f"1.0 {home.environments.built(row.key).root}"


@pytest.mark.django_db(transaction=True)
def test_build_whose_process_was_killed_is_done_again_from_nothing(home, wheels):
    row = requests.row_for(Declared("train.py", lines=("tinydep",)), timezone.now())
    Environment.objects.filter(pk=row.pk).update(state=EnvironmentState.BUILDING, started_at=timezone.now())
    half = home.environments.work / f"{row.pk}-killed" / "new"
    half.mkdir(parents=True)

    preparing.prepare(row.pk)

    row.refresh_from_db()
    assert run(built(home, row), "import tinydep; print(tinydep.__version__)") == "2.0"
    assert list(home.environments.work.iterdir()) == []


@pytest.mark.django_db(transaction=True)
def test_build_survives_the_sigkill_of_the_process_that_made_it(home, wheels):
    if connection.vendor != "sqlite":
        pytest.skip("another process reads the database of this test by its file")
    make_source(wheels, "slowlib", first="import time; time.sleep(3600)")
    setuptools = next(part for part in server_base().parts if part.name == "setuptools")
    pack_installed(wheels, setuptools.entries, setuptools.name, setuptools.version)
    row = requests.row_for(Declared("train.py", lines=("slowlib",)), timezone.now() - timedelta(minutes=1))
    home.database.symlink_to(connection.settings_dict["NAME"])
    builder = subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(row.pk)],
        cwd=REPOSITORY,
        env={**os.environ, "BERTH_HOME": str(home.root), "BERTH_WHEELS": str(wheels)},
    )
    compiling = re.compile(r"(?s)\$ uv pip compile.*\$ uv pip compile")  # the second builds from source
    wait_until(lambda: builder.poll() is not None or _matches(compiling, home.environments.log(row.pk)))
    assert builder.poll() is None
    builder.kill()
    builder.wait()
    row.refresh_from_db()
    assert row.state == EnvironmentState.BUILDING

    make_wheel(wheels, "slowlib")
    preparing.sweep(timezone.now())

    wait_until(lambda: Environment.objects.get(pk=row.pk).state == EnvironmentState.READY)
    row.refresh_from_db()
    assert run(built(home, row), "import slowlib; print(slowlib.__version__)") == "1.0"
    wait_until(lambda: not preparing._builds.is_busy)


@pytest.mark.django_db(transaction=True)
def test_environment_that_no_job_has_used_for_long_is_removed(home, wheels, waiting):
    used, unused = prepared("tinylib==1.0"), prepared("tinydep==1.0")
    waiting(used)
    left = home.environments.work / "7-killed"
    left.mkdir()
    for place in (built(home, used).root, built(home, unused).root, left):
        os.utime(place, (0, 0))

    upkeep.sweep(timezone.now())

    assert [path.name for path in (home.environments.root / "built").iterdir()] == [used.key]
    assert list(home.environments.work.iterdir()) == []


@pytest.mark.django_db(transaction=True)
def test_downloads_that_no_environment_uses_are_removed_above_the_limit_and_come_again(home, wheels):
    used, unused = prepared("tinylib==1.0", "tinydep==1.0"), prepared("tinylib==2.0")
    building.clear(built(home, unused).root)
    assert upkeep.trim_downloads(10**9) == 0

    assert upkeep.trim_downloads(1) > 0

    left = {path.name for path in home.environments.cache.glob("archive-v*/*/*.py")}
    assert "tinylib.py" in left
    assert run(built(home, used), "import tinylib; print(tinylib.__version__)") == "1.0"
    Environment.objects.filter(pk=unused.pk).update(state=EnvironmentState.WAITING)
    preparing.prepare(unused.pk)
    unused.refresh_from_db()
    assert run(built(home, unused), "import tinylib; print(tinylib.__version__)") == "2.0"


BUILDER = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "orchestrator.server.settings"
import django
django.setup()
from orchestrator.jobs.environments import preparing
preparing.prepare(int(sys.argv[1]))
"""


def _matches(pattern: re.Pattern[str], path: Path) -> bool:
    return path.exists() and pattern.search(path.read_text()) is not None


@pytest.mark.django_db(transaction=True)
def test_only_one_process_builds_an_environment_at_a_time(home, wheels):
    row = requests.row_for(Declared("train.py", lines=("tinydep",)), timezone.now())

    with locked(home.environments.lock(row.pk)) as mine:
        threading.Thread(target=preparing.prepare, args=(row.pk,)).run()

    assert mine
    row.refresh_from_db()
    assert row.state == EnvironmentState.WAITING


@pytest.mark.django_db(transaction=True)
def test_files_that_are_gone_are_made_again_from_the_same_lock(home, wheels, waiting):
    row = prepared("tinylib")
    job = waiting(row)
    building.clear(built(home, row).root)
    make_wheel(wheels, "tinylib", "3.0")

    preparing.sweep(row.created_at)

    row.refresh_from_db()
    assert row.state == EnvironmentState.WAITING
    preparing.prepare(row.pk)
    assert run(built(home, Environment.objects.get()), "import tinylib; print(tinylib.__version__)") == "2.0"
    passes.run_pass()
    job.refresh_from_db()
    assert job.state == JobState.STARTING
