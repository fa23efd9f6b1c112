"""The live server against its own OpenAPI: made-up requests for every operation."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.server import Server

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
EXAMPLES = 10  # of each operation; by hand, 200


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_request_gets_a_500_or_an_answer_beyond_the_schema(own_server: Server, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{own_server.port}/api/v1/openapi.json"
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run", address),
        *("--header", f"Authorization: Token {own_server.token}", "--checks", ",".join(CHECKS)),
        *("--phases", "fuzzing", "--max-examples", str(EXAMPLES), "--seed", "1", "--no-color"),
        *("--generation-database", "none", "--suppress-health-check", "all", "--warnings", "off"),
        *("--continue-on-failure", "--request-timeout", "120"),  # the machine may be busy
        *("--exclude-path", "/api/v1/poll"),  # it waits for news
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-6000:]
    cases = re.search(r"(\d+) generated", done.stdout)
    assert cases is not None
    assert int(cases[1]) > 300
