"""Ranks that are started once for many cases."""

import os
import subprocess
import sys
from pathlib import Path

from tests import waiting

PATIENCE_S = 2 * waiting.PATIENCE_S
"""The longest wait for ranks, each of which loads torch on a busy machine; only a failure takes this."""
FOR_EACH_S = 60.0
"""Of many cases: a limit for all of them would measure how busy the machine is."""
REPOSITORY = Path(__file__).parents[2]


def run_cases(ranks: int, folder: Path, *cases: str, script: str = "strategy_runs.py") -> Path:
    """Start the ranks once for all cases; each leaves its file in ``folder``."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_")}
    process = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(script)), str(ranks), str(folder), *cases],
        env={**environment, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        cwd=folder,
        timeout=max(PATIENCE_S, FOR_EACH_S * len(cases)),
        check=False,
    )
    errors = "\n".join(path.read_text() for path in sorted(folder.glob("error-*.txt")))
    assert process.returncode == 0, errors
    return folder
