"""Slurm as a lender: ``sbatch``, ``squeue``, ``scontrol`` and ``scancel``, here or through ssh on another host.

Formatted output is read rather than ``--json``: its fields are the same from Slurm 20.11 on, while each release has
another shape of JSON, and some are built without it.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from orchestrator.lending.port import Grant, GrantState, NoAnswer, PilotRequest, Refused

ANSWERS_WITHIN_S = 30.0
_FORMAT = "%i|%T|%j|%S|%e|%N|%r"  # the reason last: it is the only text that may hold a bar
_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
_HELD = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
# Slurm gave up a server that does not answer: what ran there may go on.
_WITHOUT_PROOF = frozenset({"NODE_FAIL", "BOOT_FAIL"})
_NOT_REFUSED = re.compile(
    r"Socket timed out|Unable to contact slurm controller|Connection (refused|timed out)|"
    r"Could not establish a configuration source|Zero Bytes|temporarily unable",
    re.IGNORECASE,
)
_SSH_FAILED = 255
# What an allocation runs: it joins as a server, and leaves nothing behind.  Slurm names the allocation's GPUs by their
# numbers on the server.
_SCRIPT = """#!/bin/sh
umask 077
HOME="${{HOME:-/tmp}}" PATH="${{PATH:-/usr/local/bin:/usr/bin:/bin}}"
export HOME PATH
folder=$(mktemp -d "${{TMPDIR:-/tmp}}/berth-pilot-XXXXXX") || exit 1
cat >"$folder/token" <<'TOKEN'
{token}
TOKEN
export BERTH_HOME="$folder/home" BERTH_DEVICES={devices} BERTH_CPU_SLOTS=0
exec {python} -m orchestrator.management pilot {head} --token-file "$folder/token" --name {name} \\
  --folder "$folder" --lasts-s {lasts_s}
"""


class Partition(NamedTuple):
    """Where pilots are asked for."""

    partition: str = ""  # empty: the cluster's default
    account: str = ""
    via: str = ""  # host on which Slurm's commands run; empty: this one
    python: str = ""  # with Berth, on the cluster's servers


class Slurm:
    """``LendingEngine`` over the commands of Slurm."""

    def __init__(self, where: Partition) -> None:
        self._where = where

    def request(self, wish: PilotRequest) -> str:
        where = self._where
        options = [
            "--parsable",
            f"--job-name={wish.tag}",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={wish.cpus}",
            f"--time={-(-wish.longest_s // 60)}",
            "--no-requeue",  # a pilot that ends is over; Berth asks for another
            "--output=/dev/null",
            "--export=NIL",
            "--chdir=/tmp",
            *([f"--partition={where.partition}"] if where.partition else []),
            *([f"--account={where.account}"] if where.account else []),
            *([f"--gpus-per-node={wish.gpus}"] if wish.gpus else []),
        ]
        done = self._run(["sbatch", *options], pilot_script(wish, where.python))
        if done.returncode:
            said = _last_line(done.stderr)
            if done.returncode == _SSH_FAILED or _NOT_REFUSED.search(done.stderr):
                raise NoAnswer(said)
            raise Refused(said)
        return done.stdout.strip().splitlines()[-1].split(";")[0]

    def grants(self, tags: Collection[str]) -> Mapping[str, Grant]:
        if not tags:
            return {}
        command = ["squeue", "--noheader", "--states=all", f"--name={','.join(sorted(tags))}", "-o", _FORMAT]
        done = self._run(["env", "SLURM_TIME_FORMAT=%s", *command])
        if done.returncode:
            raise NoAnswer(_last_line(done.stderr))
        found = [grant for line in done.stdout.splitlines() if (grant := read_line(line)) is not None]
        return {grant.tag: grant for grant in found if grant.tag in tags}

    def release(self, grant: str) -> None:
        done = self._run(["scancel", grant])
        if done.returncode and "Invalid job id" not in done.stderr:
            raise NoAnswer(_last_line(done.stderr))

    def _run(self, command: Sequence[str], given: str = "") -> "subprocess.CompletedProcess[str]":
        if self._where.via:
            command = ["ssh", "-o", "BatchMode=yes", "--", self._where.via, shlex.join(command)]
        try:
            return subprocess.run(  # noqa: S603  # our own commands, no shell here
                command,
                input=given,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=ANSWERS_WITHIN_S,
            )
        except FileNotFoundError:
            raise Refused(
                f"{command[0]} is not installed on this server; install Slurm's commands, or name a host that has them."
            ) from None
        except subprocess.TimeoutExpired:
            raise NoAnswer(f"{command[0]} did not answer within {ANSWERS_WITHIN_S:.0f} s.") from None
        except OSError as error:
            raise NoAnswer(f"{command[0]} cannot be run: {error.strerror}.") from error


def read_line(line: str) -> Grant | None:
    """One line of ``squeue`` in our format; None for any other line."""
    parts = line.strip().split("|", 6)
    if len(parts) != 7:
        return None
    number, state, tag, start, end, where, reason = parts
    reason = "" if reason == "None" else reason
    if state in _WAITING:
        return Grant(
            number, tag, GrantState.WAITING, reason or state.capitalize(), expected_at=_moment(start)
        )
    if state in _HELD:
        return Grant(number, tag, GrantState.HELD, held_at=_moment(start), until=_moment(end), where=where)
    why = state.replace("_", " ").capitalize() + (f" ({reason})" if reason else "")
    return Grant(number, tag, GrantState.ENDED, why, until=_moment(end), is_proof=state not in _WITHOUT_PROOF)


def _moment(text: str) -> float | None:
    return float(text) if text.isdigit() else None


def _last_line(text: str) -> str:
    """What the command says, in its own words; the last line has the cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-2:])[:400] if lines else "It failed without a word."


def pilot_script(wish: PilotRequest, python: str = "") -> str:
    """The batch script of a pilot.

    The token stands in the script, which Slurm shows to its owner and its administrators alone.
    """
    return _SCRIPT.format(
        token=wish.token,
        devices=shlex.quote(wish.devices),
        python=shlex.quote(python or sys.executable),
        head=shlex.quote(wish.head),
        name=shlex.quote(wish.name),
        lasts_s=wish.longest_s,
    )
