"""The build of torch is the one that the driver and the GPUs of a machine can use."""

import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.devices import torch_builds
from orchestrator.devices.torch_builds import Host
from orchestrator.jobs.environments import sources
from orchestrator.server.doctor import machine
from tests.devices.stub import stub_environment

ROOT = Path(__file__).parents[2]
A100, V100, B200 = (8, 0), (7, 0), (10, 0)


@pytest.mark.parametrize(
    ("control", "build", "why"),
    [
        (("driver 580", "count 2"), "cu130", "Driver 580.0.00-stub runs CUDA 13.0."),
        (("driver 570",), "cu126", "runs CUDA 12.6."),
        (("driver 535",), "cu126", "runs CUDA 12.6."),
        (("driver 580", "count 1", "capability.0 70"), "cu126", "runs CUDA 12.6."),
        (("driver 570", "minor 86", "count 1", "capability.0 100"), "cu128", "runs CUDA 12.8."),
        (("driver 470",), "cpu", "Driver 470.0.00-stub is too old for this torch, which needs 525.60.13"),
        (("init 18",), "cpu", "different versions. Reboot the host"),
    ],
)
def test_driver_and_gpus_choose_the_build(stub_library, tmp_path, control, build, why):
    (tmp_path / "control").write_text("".join(f"{line}\n" for line in control))
    environment = stub_environment(stub_library) | {"NVML_STUB_CONTROL": str(tmp_path / "control")}

    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.devices.torch_builds"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split()[0] == build
    assert why in done.stderr


def test_machine_without_a_driver_gets_the_build_for_cpus():
    choice = torch_builds.choose(Host(None, problem="No NVIDIA driver found on this host."))

    assert choice == torch_builds.Choice("cpu", "No NVIDIA driver found on this host.")


def test_build_for_most_gpus_is_chosen_where_none_serves_all():
    choice = torch_builds.choose(Host("580.65.06", (V100, B200)))

    assert choice.name == "cu130"
    assert "no code for GPUs of compute capability 7.0" in choice.why


@pytest.mark.parametrize(
    ("version", "cuda", "host", "sentence"),
    [
        ("2.13.0", "13.0", Host("535.183.01", (A100,)), "needs driver 580 or newer, and this is driver 535.183.01"),
        ("2.13.0+cpu", None, Host("570.86.15", (A100,)), "is a build for CPUs, but there is an NVIDIA driver"),
        ("2.13.0", "13.0", Host("580.65.06", (V100,)), "no code for GPUs of compute capability 7.0"),
        ("2.13.0+cpu", None, Host("470.57.02", (A100,)), "is too old for this torch"),
    ],
)  # fmt: skip
def test_torch_that_cannot_use_the_gpus_is_explained(version, cuda, host, sentence):
    assert sentence in (torch_builds.misfit(version, cuda, host) or "")


@pytest.mark.parametrize(
    ("cuda", "host"),
    [
        ("13.2", Host("590.10", (A100,))),
        ("12.9", Host("535.183.01", (A100,))),
        ("12.8", Host("570.86.15", (A100,))),
        (None, Host(None)),
    ],
)
def test_torch_that_runs_on_the_driver_is_left_alone(cuda, host):
    assert torch_builds.misfit("2.13.0", cuda, host) is None


def test_installed_torch_is_read_without_loading_it():
    loaded = "torch" in sys.modules
    version, cuda = torch_builds.installed() or ("", "")

    assert version.startswith("2.")
    assert cuda is None or cuda[:2].isdecimal()
    assert ("torch" in sys.modules) == loaded


def test_doctor_compares_torch_with_the_driver(settings, monkeypatch):
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, devices="auto")
    monkeypatch.setattr(torch_builds, "read_host", lambda: Host("535.183.01", (A100,)))
    monkeypatch.setattr(torch_builds, "installed", lambda: ("2.13.0", "13.0"))

    (finding,) = machine.check_torch()

    assert "needs driver 580" in finding.sentence
    assert "`make torch` installs the build for this driver" in finding.sentence


@pytest.mark.parametrize(
    ("setting", "environment", "locked", "variables"),
    [
        ("cu126", {}, None, {"UV_TORCH_BACKEND": "cu126"}),
        ("cu126", {}, "2.12.0+cu128", {"UV_TORCH_BACKEND": "cu128"}),
        ("cu126", {}, "2.12.0", {}),
        ("default", {}, None, {}),
        ("", {"UV_TORCH_BACKEND": "auto"}, None, {}),
        ("", {"UV_DEFAULT_INDEX": "file:///srv/mirror"}, None, {}),
        ("file:///srv/torch", {"UV_INDEX": "file:///srv/own"}, None, {"UV_INDEX": "file:///srv/torch file:///srv/own"}),
    ],
)  # fmt: skip
def test_jobs_that_pin_a_torch_get_the_build_of_the_server(settings, setting, environment, locked, variables):
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, torch_index=setting)
    environment = {"PIP_CONFIG_FILE": os.devnull, **environment}

    assert sources.for_torch(locked, environment) == variables


@pytest.fixture
def tree(tmp_path: Path, stub_library: Path) -> Path:
    """A clone with an environment whose pip and uv write down what they are asked."""
    shutil.copy(ROOT / "make.py", tmp_path)
    (tmp_path / "orchestrator").symlink_to(ROOT / "orchestrator")
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    python = f'#!/bin/sh\n[ "$2" = pip ] && {{ echo "pip $@" >> {tmp_path}/asked; exit 0; }}\nexec {sys.executable} "$@"\n'
    for name, text in {
        "python": python,
        "uv": f'#!/bin/sh\necho "uv $@" >> {tmp_path}/asked\nexec {tmp_path}/answer\n',
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "answer").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "answer").chmod(stat.S_IRWXU)
    (tmp_path / "control").write_text("driver 535\n")
    return tmp_path


def asked(tree: Path, stub_library: Path, **environment: str) -> tuple[str, str]:
    """What installing torch asked of pip and uv, and what it said."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import make; make.install_torch()"],
        cwd=tree,
        env=stub_environment(stub_library) | {"NVML_STUB_CONTROL": str(tree / "control")} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return (tree / "asked").read_text(), done.stdout + done.stderr


def test_install_takes_the_build_for_an_older_driver(tree, stub_library):
    words, said = asked(tree, stub_library)

    assert "--torch-backend cu126 --reinstall-package torch torch>=" in words
    assert "for cu126 (the largest part)" in said


def test_install_takes_pips_torch_where_the_index_does_not_answer(tree, stub_library):
    (tree / "answer").write_text("#!/bin/sh\nexit 2\n")

    words, said = asked(tree, stub_library)

    assert "pip -m pip install torch>=" in words
    assert "the index of cu126 does not answer" in said


def test_setting_overrides_the_driver(tree, stub_library):
    words, _ = asked(tree, stub_library, BERTH_TORCH_INDEX="file:///srv/torch")

    assert words.startswith("pip -m pip install --upgrade --index-url file:///srv/torch torch>=")


def test_build_that_was_asked_for_and_cannot_be_had_ends_the_installation(tree, stub_library):
    (tree / "answer").write_text("#!/bin/sh\nexit 2\n")

    words, said = asked(tree, stub_library, BERTH_TORCH_INDEX="cu999")

    assert "pip" not in words.split()[0]
    assert "the build cu999 of BERTH_TORCH_INDEX could not be installed" in said
