"""What each level of the sandbox adds to the start of a script of one line, by the supervisor alone."""

import json
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figures import ROOT, Outcome
from benchmarks.stats import median, spread
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import write_record
from orchestrator.supervisor.sandbox import bwrap

ROUNDS = 15
SUPERVISOR = ROOT / "orchestrator" / "supervisor" / "__main__.py"
SCRIPT = "import time; print(time.time(), flush=True)"


def measure_sandboxes(outcome: Outcome) -> None:
    """``sandbox_added_ms``: of the level that Berth chooses here, above none; the levels take turns."""
    best = bwrap.detect()
    times_s: dict[int, list[float]] = {level: [] for level in range(best + 1)}
    with tempfile.TemporaryDirectory(prefix="berth-bench-sandbox-") as home:
        for number in range(ROUNDS + 1):
            for level, measured in times_s.items():
                took_s = _time_start(Path(home), f"{number}-{level}", level)
                if number:  # the first round reads the programs from the disk
                    measured.append(took_s)
    if not best:
        outcome.missing["sandbox_added_ms"] = "no sandbox works on this machine"
    else:
        added_s = (median(times_s[best]) - median(times_s[0])) * 1000
        outcome.figures["sandbox_added_ms"] = max(0.0, added_s)
    for level, measured in times_s.items():
        outcome.details[f"sandbox_level{level}_ms"] = spread([each * 1000 for each in measured])


def _time_start(home: Path, name: str, level: int) -> float:
    """From the start of a supervisor to the script's own first line."""
    job = home / "jobs" / name
    folder = AttemptFolder(job / "attempts" / "1")
    for path in (folder.root, job / "work", job / "checkpoints", job / "output"):
        path.mkdir(parents=True)
    (job / "work" / "train.py").write_text(SCRIPT)
    write_record(folder.launch, _launch(home, job, level))
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SUPERVISOR), str(folder.root)],
        input=json.dumps({}).encode(),
        check=False,
    )
    log = folder.logs / "rank0.log"
    if done.returncode or not log.exists() or not log.read_text().strip():
        raise RuntimeError(f"A script did not start at level {level}: {folder.exit.read_text()[:500]}")
    return float(log.read_text()) - began


def _launch(home: Path, job: Path, level: int) -> dict[str, object]:
    return {
        "job_id": job.name,
        "number": 1,
        "nonce": secrets.token_hex(16),
        "python": sys.executable,
        "entry": str(ROOT / "training" / "entry.py"),
        "script": "train.py",
        "args": [],
        "env": {},
        "ranks": 1,
        "launcher": "torchrun",
        "home": str(home),
        "work": str(job / "work"),
        "checkpoints": str(job / "checkpoints"),
        "output": str(job / "output"),
        "read_only": [],
        "device_nodes": [],
        "sandbox": {"level": level, "network": "host"},
        "grace_s": 5.0,
        "limits": {"log_bytes": 1 << 20, "memory_bytes": None, "open_files": None},
        "hang_timeout_s": None,
        "gpu_memory_fraction": None,
    }
