"""Launchers of ranks: the torchrun command, and the warm launcher.

torchrun is the default, and the server uses it.  The warm launcher saves seconds for programs that start
often: benchmark cells, tests, manual retries.  It keeps one process per user and Python environment, which
has imported torch but not touched CUDA and has a single thread; that process forks every rank with
torchrun's environment.
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

ENTRY = Path(__file__).parents[1] / "entry.py"
WARM_UP_S = 60.0
_FAMILY = socket.AF_UNIX


class LaunchError(Exception):
    """Ranks could not be started; the message says why and what to do."""


def torchrun_command(script: Path | str, arguments: Sequence[str] = (), *, ranks: int) -> list[str]:
    """Build the command that starts ``ranks`` processes of a script on this machine, through ``training.entry``."""
    options = ["--standalone", "--nnodes", "1", "--nproc-per-node", str(ranks), "--max-restarts", "0"]
    return [
        sys.executable, "-m", "torch.distributed.run", *options, str(ENTRY), str(script), *arguments
    ]  # fmt: skip


def rank_environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank on one machine."""
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
    """Find a free port; another process may take it before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class WarmRun:
    """Ranks started by the warm launcher; they are killed when this process ends or calls ``kill``."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._answers = connection.makefile("rb")
        self.pids: list[int] = self._read()["pids"]

    def wait(self, timeout_s: float | None = None) -> list[int]:
        """Return the exit code of each rank, negative for a signal; if a rank fails, the others are killed.

        Raises:
            TimeoutError: some ranks are still running.
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
        """Kill all ranks; does nothing once they have ended."""
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

    All programs of this user and environment share the process behind it, which exits after ten unused
    minutes.
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

        ``output`` receives both output streams of the ranks; by default they write to this process's streams.

        Raises:
            LaunchError: the launcher does not start.
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
            # The length first: a request with a long environment arrives in several pieces.
            data = json.dumps(request).encode()
            socket.send_fds(connection, [len(data).to_bytes(8, "little")], streams)
            connection.sendall(data)
            return WarmRun(connection)
        except BaseException:
            connection.close()
            raise

    def connect(self) -> socket.socket:
        """Connect to the launcher's process; start it if none answers."""
        connection = self._try_to_connect()
        if connection is not None:
            return connection
        log = self._path.with_suffix(".log")
        with log.open("wb") as errors:
            process = subprocess.Popen(  # noqa: S603 -- our own program
                [sys.executable, "-m", "training.launch.warm_parent", str(self._path)],
                cwd=Path(__file__).parents[2],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                # Libraries must not start CUDA or threads there: neither survives a fork.
                env={**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        deadline = time.monotonic() + WARM_UP_S
        while (connection := self._try_to_connect()) is None:
            if process.poll() is not None:
                error_lines = log.read_text(errors="replace").strip().splitlines()
                raise LaunchError(
                    f"The warm launcher did not start: {error_lines[-1] if error_lines else 'no reason given'}"
                )
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise LaunchError(f"The warm launcher did not start within {WARM_UP_S:g} s; use torchrun.")
            time.sleep(0.01)
        process.returncode = 0  # it outlives us; this keeps subprocess from warning about it
        return connection

    def stop(self) -> None:
        """End the launcher's process and all ranks that it started."""
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
    """Return the socket's path, specific to user, environment and version, in a folder closed to other users."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"berth-warm-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise LaunchError(
            f"{folder} belongs to another user or is open to others; remove it, or use torchrun."
        )
    changed = max(path.stat().st_mtime_ns for path in Path(__file__).parents[1].rglob("*.py"))
    about = f"{sys.executable}\0{sys.version}\0{Path(__file__).parents[1]}\0{changed}"
    return folder / hashlib.sha256(about.encode()).hexdigest()[:16]
