"""Other ways to start a script on this machine, where they are installed: bare torchrun, task-spooler, Slurm."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from benchmarks.server import free_port

LONGEST_START_S = 30.0
# Slurm as quick as its documentation makes it: no batching of submits, schedulers each second.
SLURM_CONF = """
ClusterName=bench
SlurmctldHost=localhost
SlurmUser=root
SlurmdUser=root
SlurmctldPort={controller_port}
SlurmdPort={daemon_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=localhost CPUs={cores} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
MUNGE_FILES = (
    ("socket", "munge.socket"),
    ("key-file", "key"),
    ("pid-file", "munged.pid"),
    ("log-file", "munged.log"),
    ("seed-file", "seed"),
)


class NotHere(Exception):
    """A rival cannot be measured on this machine; the sentence says why."""


class Rival(Protocol):
    """Something that starts scripts."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def time_start(self, script: Path) -> float:
        """Seconds from the submit to the script's first line, which prints the wall clock."""


class _InFolder:
    """Keeps its files in a temporary folder that goes with it."""

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="berth-rival-"))
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None: ...

    def _stop(self) -> None: ...


class TaskSpooler(_InFolder):
    """``tsp``: one queue of one user, on one machine."""

    def _start(self) -> None:
        command = shutil.which("tsp") or shutil.which("ts")
        if command is None:
            raise NotHere("task-spooler is not installed here")
        self._command = command
        self._environment = {
            **os.environ,
            "TS_SOCKET": str(self.folder / "socket"),
            "TMPDIR": str(self.folder),
        }
        self._run("-S", "1")  # starts its server: it must not count for the first job

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [self._command, *arguments], env=self._environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def time_start(self, script: Path) -> float:
        began = time.time()
        job = self._run(sys.executable, str(script))
        self._run("-w", job)
        return wait_for_time(Path(self._run("-o", job))) - began

    def _stop(self) -> None:
        if hasattr(self, "_environment"):
            self._run("-K")


class Slurm(_InFolder):
    """A cluster of this one machine; its daemons need root."""

    def _start(self) -> None:
        needed = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        commands = {name: shutil.which(name, path=path) for name in needed}
        if absent := [name for name, found in commands.items() if found is None]:
            raise NotHere(f"Slurm is not installed here ({', '.join(absent)})")
        if os.geteuid() != 0:
            raise NotHere("Slurm's daemons need root")
        self._commands = {name: str(found) for name, found in commands.items()}
        self._environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        self.folder.chmod(0o755)  # munge refuses a socket that others cannot reach
        self._write_files()
        self._run("munged", "--force", *(f"--{name}={self.folder / file}" for name, file in MUNGE_FILES))
        self._run("slurmctld", "-i")
        self._run("slurmd", "-N", "localhost")
        self._wait_until_idle()

    def _write_files(self) -> None:
        ports = {"controller_port": free_port(), "daemon_port": free_port()}
        text = SLURM_CONF.format(folder=self.folder, cores=os.cpu_count() or 1, **ports)
        (self.folder / "slurm.conf").write_text(text)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)

    def _run(self, name: str, *arguments: str) -> str:
        command = [self._commands[name], *arguments]
        done = subprocess.run(
            command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise NotHere(f"{name} does not start here: {done.stderr.strip()[-200:]}")
        return done.stdout.strip()

    def _wait_until_idle(self) -> None:
        deadline = time.monotonic() + LONGEST_START_S
        while "State=IDLE" not in self._run("scontrol", "show", "node", "localhost"):
            if time.monotonic() > deadline:
                raise NotHere(f"Slurm's node did not come up within {LONGEST_START_S:.0f} s")
            time.sleep(0.2)

    def time_start(self, script: Path) -> float:
        output = self.folder / f"out-{time.monotonic_ns()}"
        began = time.time()
        self._run("sbatch", "--output", str(output), "--wrap", f"{sys.executable} {script}")
        return wait_for_time(output) - began

    def _stop(self) -> None:
        for name in ("slurmd", "slurmctld", "munged"):
            try:
                os.kill(int((self.folder / f"{name}.pid").read_text()), 15)
            except (OSError, ValueError):
                continue  # it did not come that far
            _wait_until_gone(self.folder / f"{name}.pid")


def bare_torchrun(
    ranks: int, script: Sequence[str], output: Path, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """torchrun as a person types it, with everything it prints in ``output``."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    with output.open("wb") as file:
        return subprocess.Popen(
            [*command, *script],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )


def wait_for_time(path: Path) -> float:
    """The wall clock that a script has printed as its first line."""
    deadline = time.monotonic() + LONGEST_START_S
    while time.monotonic() < deadline:
        text = path.read_text() if path.exists() else ""
        if text.endswith("\n"):
            return float(text.splitlines()[0])
        time.sleep(0.005)
    raise RuntimeError(f"Nothing was printed to {path.name} within {LONGEST_START_S:.0f} s")


def _wait_until_gone(path: Path) -> None:
    deadline = time.monotonic() + 5
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
