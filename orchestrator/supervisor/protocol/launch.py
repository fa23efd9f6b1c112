"""The launch record: what to run, read and checked."""

import os
from pathlib import Path

from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import Record, read_record


class BadLaunch(Exception):
    """The launch record is missing or incomplete; the sentence names the field."""


class Launch:
    """The checked ``launch.json``; docs/protocol.md explains each field."""

    def __init__(self, record: Record) -> None:
        self.job_id = _text(record, "job_id")
        self.number = _whole(record, "number")
        self.nonce = _text(record, "nonce")
        self.python = Path(_text(record, "python"))
        self.entry = Path(_text(record, "entry"))
        # script, module or command; older records have scripts only
        self.starts_as = _text({"starts_as": "script", **record}, "starts_as")
        self.script = _text(record, "script")  # the script's path, the module's name, or the program
        self.args = _texts(record, "args")
        self.env = _environment(record.get("env", {}))
        self.ranks = _whole(record, "ranks")
        # The ranks of a command are its own, so that it counts as one, on all devices.
        self.devices = _whole({"devices": self.ranks, **record}, "devices")
        # Of each rank; older records leave each job all cores.
        all_cores = max(1, (os.cpu_count() or 1) // max(1, self.devices))
        self.threads = _whole({"threads": all_cores, **record}, "threads")
        # Of a run over several nodes; each has a supervisor, and the ranks are numbered through.
        self.nodes = _whole({"nodes": 1, **record}, "nodes")
        self.node_rank = _whole({"node_rank": 0, **record}, "node_rank")
        self.first_rank = _whole({"first_rank": 0, **record}, "first_rank")
        self.numbers = range(self.first_rank, self.first_rank + self.ranks)
        meeting = _table(record, "meeting")
        self.meeting = (_text(meeting, "address"), _whole(meeting, "port")) if meeting else None
        # torchrun's agent costs a second, and a single process gains nothing from it.
        several = self.ranks > 1 and record.get("launcher", "torchrun") != "direct"
        self.torchrun = several or self.nodes > 1
        self.home, self.work = Path(_text(record, "home")), Path(_text(record, "work"))
        self.cwd = Path(_text({"cwd": str(self.work), **record}, "cwd"))  # a folder below ``work``
        self.checkpoints, self.output = Path(_text(record, "checkpoints")), Path(_text(record, "output"))
        self.python_roots = [Path(path) for path in _texts(record, "python_roots")]
        self.read_only = [Path(path) for path in _texts(record, "read_only")]
        self.writable = [Path(path) for path in _texts(record, "writable")]  # beside the job's own folders
        self.device_nodes = [Path(path) for path in _texts(record, "device_nodes")]
        # Of a job with an image: the folder of its files, files of the host in it, and variables of its loader, which the
        # host's programs must not have.
        inside = _table(record, "image")
        self.image = Path(_text(inside, "root")) if inside else None
        self.image_files = [
            (Path(path), Path(place)) for place, path in _environment(inside.get("files", {})).items()
        ]
        self.image_loader = _environment(inside.get("loader", {}))
        sandbox = _table(record, "sandbox")
        self.level = _whole(sandbox, "level")
        self.own_network = _text(sandbox, "network") == "none"
        self.grace_s = _seconds(record.get("grace_s")) or 0.0
        # Of a node; None on the first server.
        self.lease = Path(_text(record, "lease")) if "lease" in record else None
        limits = _table(record, "limits")
        self.log_bytes = _bytes(limits.get("log_bytes"))  # of each rank
        self.memory_bytes = _bytes(limits.get("memory_bytes"))  # of all processes together
        self.open_files = _bytes(limits.get("open_files"))
        self.pids = _bytes(limits.get("pids"))  # processes and threads
        self.cpus = _bytes(limits.get("cpus"))  # a share, not a cap: free processors stay usable
        self.disk_bytes = _bytes(limits.get("disk_bytes"))  # of all files that the run can write, together
        self.hang_timeout_s = _seconds(record.get("hang_timeout_s"))
        self.gpu_memory_fraction = _seconds(record.get("gpu_memory_fraction"))
        if self.ranks < 1:
            raise BadLaunch(f"launch.json asks for {self.ranks} ranks; at least one is needed")
        if self.starts_as not in ("script", "module", "command") or (self.is_command and self.ranks > 1):
            raise BadLaunch(f"launch.json starts {self.ranks} ranks as {self.starts_as!r}")
        if self.nodes > 1 and (self.meeting is None or self.own_network or self.is_command):
            raise BadLaunch("launch.json names several nodes, whose ranks cannot meet")
        if self.image is not None and self.level == 0:
            raise BadLaunch("an image needs bubblewrap, but launch.json asks for sandbox level 0")
        if self.own_network and self.level == 0:
            raise BadLaunch("a network of its own needs bubblewrap, but launch.json asks for sandbox level 0")

    @property
    def is_command(self) -> bool:
        """Whether the run is one program that starts its own ranks, if any."""
        return self.starts_as == "command"


def read_launch(folder: AttemptFolder) -> Launch:
    """The checked launch record of this attempt.

    Raises:
        BadLaunch: the record is missing, garbled or incomplete.
    """
    record = read_record(folder.launch)
    if record is None:
        raise BadLaunch("launch.json is missing or cannot be read")
    return Launch(record)


def _text(record: Record, name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not value or "\0" in value:
        raise BadLaunch(f"launch.json: {name} must be a text")
    return value


def _whole(record: Record, name: str) -> int:
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadLaunch(f"launch.json: {name} must be a whole number")
    return value


def _texts(record: Record, name: str) -> list[str]:
    value = record.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and "\0" not in item for item in value):
        raise BadLaunch(f"launch.json: {name} must be a list of texts")
    return value


def _table(record: Record, name: str) -> Record:
    value = record.get(name, {})
    if not isinstance(value, dict):
        raise BadLaunch(f"launch.json: {name} must be a table")
    return value


def _environment(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise BadLaunch("launch.json: env must be a table of texts")
    return value


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value >= 0 else None


def _bytes(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
