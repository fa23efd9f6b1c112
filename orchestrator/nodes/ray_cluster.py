"""Ray as the carrier between servers: it knows the nodes, and takes the calls of their ports.

Ray without a token lets everybody on the network run programs, so it is never started without one.
"""

import contextlib
import hashlib
import json
import logging
import os
import secrets
import shutil
import stat
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.exceptions import Unavailable
from orchestrator.nodes.port import LocalPort, Port

NAMESPACE = "berth"
ANSWERS_WITHIN_S = 10.0
KEPT_SESSIONS = 3
QUIET_AFTER_S = 3600.0
# A file with the address of the last head. Where it is there, a new head refuses to start as long as any node on this
# machine still names this address; without it only the port decides.
_LAST_ADDRESS = "ray_current_cluster"
PREFIX = "berth-node-"  # of the resource that only one node has
NAME, HOME, DEVICES, SLOTS = "BERTH_NODE_NAME", "BERTH_NODE_HOME", "BERTH_NODE_DEVICES", "BERTH_NODE_SLOTS"
ADDRESS, DATA = "BERTH_NODE_ADDRESS", "BERTH_NODE_DATA"


class NoRay(Unavailable):
    """Ray is not installed here, or does not answer; the sentence says what to do."""

    code = "no_ray"


class Address(NamedTuple):
    """Where Ray's head listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def environment(token: Path) -> dict[str, str]:
    """The variables of every process of Ray: with the token, and without reports to its makers."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
    }


def make_token(path: Path) -> None:
    """Write a token where there is none yet."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(fd, "w") as file:
        file.write(secrets.token_hex(32))


def head_command(address: Address, folder: Path) -> list[str]:
    """What starts Ray's head, which runs no work itself."""
    return [
        *_start(folder, address.host),
        "--head",
        "--port",
        str(address.port),
        "--num-cpus",
        "0",
        "--include-dashboard",
        "false",
    ]


def join_command(head: Address, here: str, name: str, folder: Path) -> list[str]:
    """What makes this server a node.

    Args:
        here: the address of this server, as the head's reaches it.
        name: of the node.
    """
    return [
        *_start(folder, here),
        "--address",
        str(head),
        "--num-cpus",
        "1",
        "--resources",
        json.dumps({PREFIX + name: 1}),
    ]


def _start(folder: Path, here: str) -> list[str]:
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"),
        *("--node-ip-address", here, "--num-gpus", "0"),
        *("--temp-dir", str(folder), "--object-store-memory", str(100 << 20)),
    ]


def short_folder(home: Path) -> Path:
    """A folder for Ray's sockets, whose paths the kernel keeps short; in one that nobody else may enter.

    Ray opens its own folder to everybody.

    Raises:
        NoRay: somebody else has made it.
    """
    digest = hashlib.sha256(bytes(home)).hexdigest()[:8]
    folder = Path(tempfile.gettempdir()) / f"berth-ray-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise NoRay(
            f"{folder} is not a folder of this user alone; remove it, or set TMPDIR to another place."
        )
    return folder / "r"


def prepare_folder(folder: Path) -> None:
    """Prepare Ray's folder for a start: remove the address of the last head, and old logs."""
    (folder / _LAST_ADDRESS).unlink(missing_ok=True)
    _clear_sessions(folder)


def _clear_sessions(folder: Path) -> None:
    """Remove the logs of earlier starts but the newest: Ray begins another folder at each, and removes none.

    What was written to within an hour may be in use: by a node of this state folder that joined another server.
    """
    sessions = sorted(path for path in folder.glob("session_*") if not path.is_symlink())
    for old in sessions[:-KEPT_SESSIONS]:
        if time.time() - _written_at(old) > QUIET_AFTER_S:
            shutil.rmtree(old, ignore_errors=True)


def _written_at(session: Path) -> float:
    """When a file of a session's logs was changed last; Ray writes to some each minute."""
    times = []
    for path in (session, *session.glob("logs/*")):
        with contextlib.suppress(OSError):  # it went just now
            times.append(path.lstat().st_mtime)
    return max(times, default=0.0)


class PortHere(LocalPort):
    """The port of the server that this process of Ray runs on, as ``join_command``'s variables describe it."""

    def __init__(self) -> None:
        slots, home = os.environ.get(SLOTS, "0"), Path(os.environ[HOME])
        super().__init__(
            os.environ[NAME],
            folder_of_jobs(home, Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()),
            os.environ[DEVICES],
            None if slots == "auto" else int(slots),
            hidden=home,
            address=os.environ[ADDRESS],
            data={name: Path(path) for name, path in json.loads(os.environ.get(DATA, "{}")).items()},
        )


def folder_of_jobs(home: Path, token: str) -> Path:
    """The folder for jobs of the server with this token, apart from this server's own jobs and any third server's."""
    return home / "node" / hashlib.sha256(token.strip().encode()).hexdigest()[:12]


class Cluster:
    """A connection to Ray; one a process."""

    def __init__(self, address: Address, token: Path) -> None:
        """Connect.

        Raises:
            NoRay: it is not installed, does not answer, or refuses the token.
        """
        os.environ.update(environment(token))
        try:
            import ray
        except ImportError:
            raise NoRay("Ray is not installed here: install Berth with its extra `nodes`.") from None
        self._ray: Any = ray
        try:
            ray.init(
                address=str(address),
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        except Exception as error:  # Ray raises many kinds
            raise NoRay(f"Ray at {address} cannot be reached: {error}") from error

    def names(self) -> list[str]:
        """The nodes that Ray has now.

        Raises:
            NoRay: it does not answer.
        """
        try:
            nodes = self._ray.nodes()
        except Exception as error:  # Ray raises many kinds
            raise NoRay(f"Ray does not answer any more: {error}") from error
        return sorted(
            resource.removeprefix(PREFIX)
            for node in nodes
            if node["Alive"]
            for resource in node["Resources"]
            if resource.startswith(PREFIX)
        )

    def port(self, name: str) -> Port:
        """The port of a node, which is started there if it does not run."""
        ray = self._ray
        actor = ray.remote(PortHere).options(
            name=f"port-{name}",
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_concurrency=4,
            num_cpus=0,
            resources={PREFIX + name: 0.001},
        )
        return RayPort(ray, actor.remote())

    def close(self) -> None:
        self._ray.shutdown()


class RayPort:
    """``Port`` whose calls go through Ray; what is not answered raises TimeoutError, which is an OSError."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)

    def _call(self, name: str, *given: object) -> Any:
        ray = self._ray
        try:
            return ray.get(getattr(self._actor, name).remote(*given), timeout=ANSWERS_WITHIN_S)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise (cause if isinstance(cause, OSError) else OSError(str(error))) from error
        except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
            raise TimeoutError(f"the node does not answer the call {name}: {error}") from error
