"""Made-up requests for every operation of the server's own OpenAPI, by schemathesis."""

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.system.server import Server

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


@dataclass(frozen=True, slots=True)
class Called:
    """What came of the requests of one person."""

    cases: int
    is_clean: bool
    report: str


def call_everything(
    server: Server, headers: Mapping[str, str], folder: Path, *, examples: int, seed: int, phases: str
) -> Called:
    """Call each operation at most ``examples`` times a phase; ``folder`` takes what schemathesis writes."""
    address = f"http://127.0.0.1:{server.port}/api/v1/openapi.json"
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", address]
    for name, value in headers.items():
        command += ["--header", f"{name}: {value}"]
    command += ["--checks", ",".join(CHECKS), "--phases", phases, "--max-examples", str(examples)]
    command += ["--seed", str(seed), "--no-color", "--generation-database", "none", "--warnings", "off"]
    command += ["--suppress-health-check", "all", "--continue-on-failure"]
    command += ["--exclude-path", "/api/v1/poll"]  # it waits for news
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    counted = re.search(r"(\d+) generated", done.stdout)
    return Called(int(counted[1]) if counted else 0, done.returncode == 0, done.stdout + done.stderr)
