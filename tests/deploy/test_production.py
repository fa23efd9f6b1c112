"""Production settings and logs."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.server.logs import TextLines, json_lines

ROOT = Path(__file__).resolve().parents[2]


def manage(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_")}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**kept, "BERTH_HOME": str(home), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_t26_the_deployment_check_has_no_warning_with_production_settings(tmp_path):
    chosen = {"BERTH_TLS": "1", "BERTH_ALLOWED_HOSTS": "gpu1.example.org", "BERTH_LOG": "json"}

    done = manage(tmp_path, "check", "--deploy", "--fail-level", "WARNING", **chosen)

    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


def record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("orchestrator.x", logging.WARNING, __file__, 1, text, arguments, None)


@pytest.mark.parametrize("sign", ["\n", "\r", "\x1b[2J", "\u202e", "\x00"])
def test_t20_control_characters_are_shown_and_not_sent(sign):
    lines = TextLines().format(record("job %s began", f"a{sign}b"))
    assert sign not in lines

    entry = json_lines().format(record("job %s began", f"a{sign}b"))
    assert sign not in entry
    assert json.loads(entry)["event"] == f"job a{sign}b began"


def test_json_logs_carry_time_level_and_logger():
    entry = json.loads(json_lines().format(record("it broke")))

    assert {name: entry[name] for name in ("level", "logger", "event")} == {
        "level": "warning",
        "logger": "orchestrator.x",
        "event": "it broke",
    }
    assert entry["timestamp"].endswith("Z")
