"""Slurm's commands: what is asked, what its lines mean, and what becomes of its refusals."""

import os
import stat
from pathlib import Path

import pytest

from orchestrator.lending.port import Grant, GrantState, NoAnswer, PilotRequest, Refused
from orchestrator.lending.slurm import Partition, Slurm, read_line

WISH = PilotRequest(
    tag="berth-1f",
    name="cluster-slurm-1",
    head="10.0.0.5:6380",
    token="secret",  # noqa: S106  # nobody's
    devices="cpu:2",
    gpus=0,
    cpus=2,
    longest_s=3601,
)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of commands in front of all others; each keeps its arguments and its input."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def command(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >{folder}/{name}.said\ncat >{folder}/{name}.given\n{script}\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def said(folder: Path, name: str) -> list[str]:
    return (folder / f"{name}.said").read_text().splitlines()


@pytest.mark.parametrize(
    ("line", "grant"),
    [
        # As Slurm 22.05.8 printed them.
        (
            "4|PENDING|berth-1f|1795621752|1795622052||Resources",
            Grant("4", "berth-1f", GrantState.WAITING, "Resources", expected_at=1795621752.0),
        ),
        (
            "3|PENDING|berth-1f|N/A|N/A||PartitionConfig",
            Grant("3", "berth-1f", GrantState.WAITING, "PartitionConfig"),
        ),
        (
            "1|RUNNING|berth-1f|1795621632|1795621752|localhost|None",
            Grant(
                "1", "berth-1f", GrantState.HELD, held_at=1795621632.0, until=1795621752.0, where="localhost"
            ),
        ),
        (
            "1|CANCELLED|berth-1f|1795621632|1795621635|localhost|None",
            Grant("1", "berth-1f", GrantState.ENDED, "Cancelled", until=1795621635.0),
        ),
        (
            "1|NODE_FAIL|berth-1f|1795621632|1795621635|n1|None",
            Grant("1", "berth-1f", GrantState.ENDED, "Node fail", until=1795621635.0, is_proof=False),
        ),
        (
            "1|COMPLETING|berth-1f|1795621632|1795621635|n1|None",
            Grant("1", "berth-1f", GrantState.HELD, held_at=1795621632.0, until=1795621635.0, where="n1"),
        ),
        ("slurm_load_jobs error", None),
    ],
)
def test_line_of_squeue_is_read(line, grant):
    assert read_line(line) == grant


def test_request_names_one_server_and_rounds_its_time_up_to_minutes(commands):
    command(commands, "sbatch", "echo '17;main'")

    number = Slurm(Partition("gpu", "vision", python="/opt/berth/bin/python")).request(WISH)

    assert number == "17"
    options = said(commands, "sbatch")
    assert {"--partition=gpu", "--account=vision", "--nodes=1", "--cpus-per-task=2", "--time=61"} <= set(
        options
    )
    script = (commands / "sbatch.given").read_text()
    assert "exec /opt/berth/bin/python -m orchestrator.management pilot 10.0.0.5:6380" in script
    assert "--name cluster-slurm-1" in script
    assert "secret" not in " ".join(options)  # everybody on the server sees command lines


def test_refusal_is_told_in_the_words_of_sbatch(commands):
    command(
        commands,
        "sbatch",
        "echo 'sbatch: error: invalid partition specified: nope' >&2\n"
        "echo 'sbatch: error: Batch job submission failed: Invalid partition name specified' >&2\nexit 1",
    )

    with pytest.raises(
        Refused, match=r"invalid partition specified: nope .* Invalid partition name specified"
    ):
        Slurm(Partition("nope")).request(WISH)


@pytest.mark.parametrize(
    "words",
    ["Socket timed out on send/recv operation", "Unable to contact slurm controller (connect failure)"],
)
def test_controller_that_does_not_answer_has_not_refused(commands, words):
    command(commands, "sbatch", f"echo 'sbatch: error: {words}' >&2; exit 1")

    with pytest.raises(NoAnswer, match="sbatch: error"):
        Slurm(Partition()).request(WISH)


def test_missing_commands_are_told_with_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(Refused, match="sbatch is not installed on this server; install Slurm's commands"):
        Slurm(Partition()).request(WISH)


def test_only_requests_of_ours_are_answered(commands):
    command(commands, "squeue", "echo '1|RUNNING|berth-1f|1|2|n1|None'; echo '2|RUNNING|other|1|2|n1|None'")

    grants = Slurm(Partition()).grants(["berth-1f"])

    assert list(grants) == ["berth-1f"]
    assert "--name=berth-1f" in said(commands, "squeue")


def test_commands_go_through_ssh_as_one_quoted_line(commands):
    command(commands, "ssh", "echo 23")

    assert Slurm(Partition(account="a b", via="login1")).request(WISH) == "23"

    words = said(commands, "ssh")
    assert words[:4] == ["-o", "BatchMode=yes", "--", "login1"]
    assert "'--account=a b'" in words[4]
    assert "TOKEN" in (commands / "ssh.given").read_text()


def test_ssh_that_fails_has_not_refused(commands):
    command(commands, "ssh", "echo 'ssh: connect to host login1 port 22: No route to host' >&2; exit 255")

    with pytest.raises(NoAnswer, match="No route to host"):
        Slurm(Partition(via="login1")).request(WISH)


def test_allocation_that_is_gone_already_is_released(commands):
    command(
        commands,
        "scancel",
        "echo 'scancel: error: Kill job error on job id 9: Invalid job id specified' >&2; exit 1",
    )

    Slurm(Partition()).release("9")

    assert said(commands, "scancel") == ["9"]
