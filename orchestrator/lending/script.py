"""The script that an allocation runs: it joins as a server, and leaves nothing behind."""

import shlex
import sys

from orchestrator.lending.port import PilotRequest

# Slurm names the GPUs of the allocation by their numbers on the server.
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
