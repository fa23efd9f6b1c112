"""Packages of a job on top of an interpreter that an administrator registered."""

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest
from django.utils import timezone

from orchestrator.jobs.environments import preparing, requests
from orchestrator.jobs.environments.base import python as servers_python
from orchestrator.jobs.environments.declared import Declared
from orchestrator.jobs.launch import launcher
from orchestrator.jobs.submission import intake
from orchestrator.models import Environment, EnvironmentState, JobState, Pool
from orchestrator.scheduler import passes
from orchestrator.spec.job_spec import JobSpec
from orchestrator.supervisor.protocol.records import read_record
from tests.jobs.wheels import make_wheel
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
SAY = """
import json, os, importlib.metadata as metadata, sys
import tinylib, tinydep, training
said = [tinylib.__version__, tinydep.__version__, metadata.version("torch"), sys.prefix.endswith("registered")]
open(os.environ["BERTH_OUTPUT_DIR"] + "/said", "w").write(json.dumps(said))
"""


@pytest.fixture
def wheels(home, settings, tmp_path: Path) -> Path:
    """The only folder that packages come from."""
    folder = tmp_path / "wheels"
    make_wheel(folder, "tinylib", "1.0", needs=["tinydep", "torch"])
    make_wheel(folder, "tinydep", "2.0")
    make_wheel(folder, "torch", "9.0")
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, wheels=folder)
    return folder


@pytest.fixture
def registered(wheels: Path, tmp_path: Path, monkeypatch) -> str:
    """A Python with a torch of its own, an older tinydep and a program."""
    root = tmp_path / "registered"
    subprocess.run([servers_python(), "-m", "venv", "--without-pip", root], check=True)
    site = next(root.glob("lib/python*/site-packages"))
    for name, version in (("torch", "8.0"), ("tinydep", "1.0")):
        about = site / f"{name}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (site / f"{name}.py").write_text(
            f"import sys\n__version__ = {version!r}\ndef main(): print('ran', sys.argv[1])\n"
        )
    (about.with_name("torch-8.0.dist-info") / "entry_points.txt").write_text(
        "[console_scripts]\ntorch-tool = torch:main\n"
    )
    return str(root / "bin" / "python")


def prepared(*lines: str, interpreter: str) -> Environment:
    declared = Declared("torch-8 and --with", lines=lines, interpreter=interpreter)
    row = requests.row_for(declared, timezone.now())
    preparing.prepare(row.pk)
    row.refresh_from_db()
    return row


def test_packages_come_on_top_of_what_the_interpreter_has(home, registered):
    row = prepared("tinylib", interpreter=registered)

    assert row.state == EnvironmentState.READY, row.why
    place = home.environments.built(row.key)
    code = "import json, torch, tinylib, tinydep, training; print(json.dumps([each.__version__ for each in (torch, tinylib, tinydep)]))"
    said = subprocess.run([place.python, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert json.loads(said.stdout) == ["8.0", "1.0", "1.0"]
    assert {each["name"]: each["version"] for each in row.packages}["torch"] == "8.0"
    ran = subprocess.run(
        [place.python.with_name("torch-tool"), "it"], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "ran it\n"
    assert preparing.is_there(row)


def test_package_that_excludes_the_interpreters_torch_is_a_conflict(wheels, registered):
    make_wheel(wheels, "newlib", needs=["torch>=9"])

    row = prepared("newlib", interpreter=registered)

    assert (row.state, row.why["facts"]["cause"]) == (EnvironmentState.FAILED, "conflict"), row.why
    assert "torch" in row.why["facts"]["message"]


def test_interpreter_that_is_gone_fails_the_job_with_what_to_do(home, make_device, ada, wheels, tmp_path):
    device = make_device()
    Pool.objects.filter(pk=device.pool_id).update(pythons={"torch-8": str(tmp_path / "gone" / "python")})
    spec = JobSpec.model_validate(
        {"environment": "torch-8", "with_packages": ["tinylib"], "source": {"text": SAY}}
    )
    job = intake.accept(ada, spec).job

    assert job.environment is not None
    preparing.prepare(job.environment.pk)

    job.refresh_from_db()
    assert job.state == JobState.FAILED
    assert "The interpreter of torch-8 and --with cannot be used." in job.exit_detail
    assert "Ask an administrator to mend it, or name another." in job.exit_detail


def test_job_runs_with_the_interpreter_and_its_packages(home, make_device, ada, registered):
    device = make_device()
    Pool.objects.filter(pk=device.pool_id).update(pythons={"torch-8": registered})
    spec = JobSpec.model_validate(
        {"environment": "torch-8", "with_packages": ["tinylib", "tinydep>1"], "source": {"text": SAY}}
    )
    job = intake.accept(ada, spec).job
    assert job.environment is not None
    preparing.prepare(job.environment.pk)
    passes.run_pass()

    launcher.start(job.attempts.get())

    folder = home.job(job.pk)
    wait_until(folder.attempt(1).exit.exists)
    assert (read_record(folder.attempt(1).exit) or {})["kind"] == "ok"
    assert json.loads((folder.output / "said").read_text()) == ["1.0", "2.0", "8.0", False]
