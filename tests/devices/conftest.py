import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.devices import Holder
from tests.devices.stub import build_stub, stub_environment

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a compiled NVML stub."""
    try:
        return build_stub(tmp_path_factory.mktemp("nvml"))
    except FileNotFoundError as missing:
        pytest.skip(f"the NVML stub cannot be built: {missing}")


@dataclass
class GpuServer:
    """A process that reads the stub's GPUs, and the file that says what they show."""

    process: subprocess.Popen[str]
    control: Path

    def shows(self, *lines: str) -> None:
        part = self.control.with_suffix(".part")
        part.write_text("".join(f"{line}\n" for line in lines))
        part.replace(self.control)

    def ask(self, what: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def read(self) -> dict[str, Any]:
        """The answer with its rows by the number of the GPU."""
        answer = self.ask("read")
        return answer | {"rows": {int(row["device_id"][-2:]): row for row in answer.get("rows", ())}}


@pytest.fixture
def serve_gpus(stub_library: Path, tmp_path: Path) -> Iterator[Callable[..., GpuServer]]:
    """Starts a process that sees the stub's GPUs, as the given control lines say."""
    servers: list[GpuServer] = []

    def serve(*lines: str, spec: str = "nvml", holders: tuple[Holder, ...] = ()) -> GpuServer:
        control = tmp_path / "control"
        environment = stub_environment(stub_library) | {
            "NVML_STUB_CONTROL": str(control),
            "PYTHONPATH": str(ROOT),
        }
        command = [
            sys.executable,
            str(Path(__file__).parent / "reader.py"),
            spec,
            json.dumps([asdict(h) for h in holders]),
        ]
        control.write_text("".join(f"{line}\n" for line in lines))
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        servers.append(GpuServer(process, control))
        return servers[-1]

    yield serve
    for server in servers:
        server.process.kill()
        server.process.communicate()
