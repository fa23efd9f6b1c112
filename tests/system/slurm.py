"""A Slurm of this one machine, and a server that may ask it for devices."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks.rivals import NotHere, Slurm
from tests.waiting import wait_until


class Cluster:
    """What tests ask and do as an administrator of Slurm would."""

    def __init__(self, slurm: Slurm) -> None:
        self.variables = {"SLURM_CONF": str(slurm.folder / "slurm.conf")}

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, env={**os.environ, **self.variables}, capture_output=True, text=True, check=True
        )
        return done.stdout

    def submit(self, script: str, *options: str) -> str:
        done = subprocess.run(
            ["sbatch", "--parsable", "--output=/dev/null", *options],
            input=f"#!/bin/sh\n{script}\n",
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def state(self, number: str) -> str:
        return self.run("squeue", "--noheader", "--states=all", f"--jobs={number}", "-o", "%T").strip()


@contextmanager
def slurm_here() -> Iterator[Cluster]:
    """Slurm's daemons with two cores, whatever the machine has; the test is skipped where they are not installed."""
    try:
        slurm = Slurm().__enter__()
    except NotHere as error:
        pytest.skip(str(error))
    cluster = Cluster(slurm)
    try:
        yield cluster
    finally:
        cluster.run("scancel", "--user=root")
        wait_until(lambda: not cluster.run("squeue", "--noheader"), message=lambda: cluster.run("squeue"))
        slurm.__exit__(None, None, None)


def lender(**fields: Any) -> dict[str, Any]:
    return {"system": "slurm", "cpus": 1, "most_pilots": 2, "longest_s": 600, "leave_before_s": 60, **fields}
