"""Starts the ranks of a training on this machine: by torchrun, or forked from a process that has torch loaded.

torchrun is the default and what Berth's server uses.  The warm launcher takes the seconds out of
what starts often: cells of a benchmark, tests, retries by hand.  It keeps one process for each user
and Python environment, which has imported torch, has never touched CUDA and runs no threads, and
forks every rank with torchrun's environment.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

ENTRY = Path(__file__).with_name("entry.py")
WARM_UP_S = 60.0
_FAMILY = socket.AF_UNIX


class LaunchError(Exception):
    """Ranks could not be started; the sentence says why and what to do."""


def torchrun_command(script: Path | str, arguments: Sequence[str] = (), *, ranks: int) -> list[str]:
    """What starts ``ranks`` processes of a script here, through our entry: see ``training.entry``."""
    options = ["--standalone", "--nnodes", "1", "--nproc-per-node", str(ranks), "--max-restarts", "0"]
    return [
        sys.executable, "-m", "torch.distributed.run", *options, str(ENTRY), str(script), *arguments
    ]  # fmt: skip


def rank_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """The variables that torchrun gives a rank on one machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_port() -> int:
    """A port that nobody listens on now; somebody else may take it before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class WarmRun:
    """Ranks that the warm launcher started; they are killed if this process ends or calls ``kill``."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._answers = connection.makefile("rb")
        self.pids: list[int] = self._read()["pids"]

    def wait(self, timeout_s: float | None = None) -> list[int]:
        """Exit code of each rank, negative for a signal; a rank that fails takes the others along.

        Raises:
            TimeoutError: some still run.
        """
        self._connection.settimeout(timeout_s)
        try:
            codes: list[int] = self._read()["codes"]
        finally:
            self._connection.settimeout(None)
        self.kill()
        return codes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End all ranks; harmless once they have ended."""
        self._answers.close()
        self._connection.close()

    def _read(self) -> dict[str, list[int]]:
        line = self._answers.readline()
        if not line:
            raise LaunchError("The warm launcher ended unexpectedly; start again, or use torchrun.")
        answer: dict[str, list[int]] = json.loads(line)
        return answer


class WarmLauncher:
    """Starts ranks within milliseconds; the first call on a machine takes as long as importing torch.

    The process behind it is shared by all programs of this user and environment, and ends by
    itself when it was not used for ten minutes.
    """

    def __init__(self, *, socket_path: Path | None = None) -> None:
        self._path = socket_path or _socket_path()

    def start(
        self,
        script: Path | str,
        arguments: Sequence[str] = (),
        *,
        ranks: int = 1,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        output: IO[bytes] | int | None = None,
    ) -> WarmRun:
        """Run a script on ``ranks`` processes; ``env`` replaces the whole environment, as in ``subprocess``.

        ``output`` takes what they print, both streams; without it they print where this process does.

        Raises:
            LaunchError: the launcher does not come up.
        """
        request = {
            "script": str(Path(script).resolve()),
            "arguments": [*arguments],
            "ranks": ranks,
            "env": {**(os.environ if env is None else env)},
            "cwd": str(Path(cwd or ".").resolve()),
            "port": free_port(),
        }
        streams = [1, 2] if output is None else [_number(output)] * 2
        connection = self.connect()
        try:
            # The length first: a request with a long environment comes in several pieces.
            data = json.dumps(request).encode()
            socket.send_fds(connection, [len(data).to_bytes(8, "little")], streams)
            connection.sendall(data)
            return WarmRun(connection)
        except BaseException:
            connection.close()
            raise

    def connect(self) -> socket.socket:
        """A connection to the launcher's process, which is started where none answers."""
        connection = self._try_to_connect()
        if connection is not None:
            return connection
        log = self._path.with_suffix(".log")
        with log.open("wb") as errors:
            process = subprocess.Popen(  # noqa: S603 -- this module's own program
                [sys.executable, "-m", "training.warm_parent", str(self._path)],
                cwd=Path(__file__).parents[1],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                # Libraries may neither start CUDA nor threads there: a forked child has none of them.
                env={**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        deadline = time.monotonic() + WARM_UP_S
        while (connection := self._try_to_connect()) is None:
            if process.poll() is not None:
                said = log.read_text(errors="replace").strip().splitlines()
                raise LaunchError(
                    f"The warm launcher did not start: {said[-1] if said else 'no reason given'}"
                )
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise LaunchError(f"The warm launcher did not start within {WARM_UP_S:g} s; use torchrun.")
            time.sleep(0.01)
        process.returncode = 0  # it lives on by itself: nothing is to be waited for
        return connection

    def stop(self) -> None:
        """End the launcher's process, and with it all ranks that it started."""
        connection = self._try_to_connect()
        if connection is None:
            return
        with connection:
            socket.send_fds(connection, [(0).to_bytes(8, "little")], [])
            connection.recv(1)  # closed when it has ended

    def _try_to_connect(self) -> socket.socket | None:
        connection = socket.socket(_FAMILY)
        try:
            connection.connect(str(self._path))
        except OSError:
            connection.close()
            return None
        return connection


def _number(stream: IO[bytes] | int) -> int:
    return stream if isinstance(stream, int) else stream.fileno()


def _socket_path() -> Path:
    """In a folder that only this user can enter; another environment or version has another name."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"berth-warm-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise LaunchError(
            f"{folder} belongs to somebody else or is open to others; remove it, or use torchrun."
        )
    changed = max(path.stat().st_mtime_ns for path in Path(__file__).parent.rglob("*.py"))
    about = f"{sys.executable}\0{sys.version}\0{Path(__file__).parent}\0{changed}"
    return folder / hashlib.sha256(about.encode()).hexdigest()[:16]
