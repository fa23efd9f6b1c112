"""What it takes to look at Berth without a clone, and what its client weighs; needs a package index.

The distribution is built as for a release. Each demo runs in an empty folder with a home of its own; uv's cache keeps what
the first one downloaded, which is not counted.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.figures import ROOT, Figure, Outcome
from benchmarks.server import free_port
from benchmarks.stats import median, spread

FIGURES = (
    Figure(
        "uvx_demo_s",
        "s",
        "`uvx --from WHEEL[server,training] berth demo` to the answer of its page, warm cache, median",
    ),
    Figure("client_mb", "MB", "download of the wheel without extras, with all that it needs", target=5),
    Figure("client_disk_mb", "MB", "the same, installed and not compiled"),
    Figure("client_import_ms", "ms", "`import berth.client` in a new interpreter, median"),
)
UV = Path(sys.executable).parent / "uv"
DEMOS = 3
IMPORTS = 21
LONGEST_S = 900.0
IMPORT = "import time; start = time.perf_counter(); import berth.client; print(1000 * (time.perf_counter() - start))"


def measure() -> Outcome:
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="berth-bench-install-") as folder:
        work = Path(folder)
        try:
            wheel = _build(work)
            _measure_client(wheel, work, outcome)
            _measure_demo(wheel, work, outcome)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            reason = str(getattr(error, "stderr", None) or error).strip()[-300:]
            outcome.missing |= {each.name: reason for each in FIGURES if each.name not in outcome.figures}
    return outcome


def _build(work: Path) -> Path:
    _run(UV, "build", "--quiet", "--out-dir", work / "dist", ROOT)
    return next((work / "dist").glob("*.whl"))


def _measure_client(wheel: Path, work: Path, outcome: Outcome) -> None:
    _run(sys.executable, "-m", "pip", "download", "--quiet", "--dest", work / "downloads", wheel)
    downloads = {each.name.split("-")[0]: each.stat().st_size for each in (work / "downloads").iterdir()}
    outcome.figures["client_mb"] = sum(downloads.values()) / 1e6
    outcome.details["client_mb"] = _largest(downloads)
    environment = work / "client"
    python = environment / "bin" / "python"
    _run(UV, "venv", "--quiet", "--python", sys.executable, environment)
    _run(UV, "pip", "install", "--quiet", "--python", python, wheel)
    packages = next(environment.glob("lib/python*/site-packages"))
    sizes = {
        each.name: sum(file.stat().st_size for file in each.rglob("*") if file.is_file())
        for each in packages.iterdir()
        if each.is_dir()
    }
    outcome.figures["client_disk_mb"] = sum(sizes.values()) / 1e6
    outcome.details["client_disk_mb"] = _largest(sizes)
    _run(python, "-c", IMPORT)  # compiles
    took_ms = [float(_run(python, "-c", IMPORT)) for _ in range(IMPORTS)]
    outcome.figures["client_import_ms"] = median(took_ms)
    outcome.details["client_import_ms"] = spread(took_ms)


def _largest(sizes: dict[str, int]) -> dict[str, float]:
    """The six largest of some sizes in bytes, in MB."""
    chosen = sorted(sizes, key=lambda name: -sizes[name])[:6]
    return {name: round(sizes[name] / 1e6, 2) for name in chosen}


def _measure_demo(wheel: Path, work: Path, outcome: Outcome) -> None:
    outcome.details["uvx_demo_first_s"] = round(_demo(wheel, work / "first"), 1)
    took_s = [_demo(wheel, work / f"demo{number}") for number in range(DEMOS)]
    outcome.figures["uvx_demo_s"] = median(took_s)
    outcome.details["uvx_demo_s"] = spread(took_s)


def _demo(wheel: Path, folder: Path) -> float:
    """Seconds from the command to an answer of the page; the demo is stopped then."""
    folder.mkdir()
    port = free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "DATABASE_"))}
    settings = {"HOME": str(folder), "BERTH_HOME": str(folder / ".berth"), "BERTH_PORT": str(port)}
    settings |= {"UV_CACHE_DIR": _cache(), "BERTH_DEVICES": "cpu:2"}
    command: list[object] = [
        UV,
        "tool",
        "run",
        "--python",
        sys.executable,
        "--from",
        f"{wheel}[server,training]",
    ]
    log = folder / "demo.log"
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*map(str, command), "berth", "demo"],
            cwd=folder,
            env=kept | settings,
            stdout=output,
            stderr=output,
        )
    try:
        while not _answers(port):
            if process.poll() is not None or time.monotonic() - began > LONGEST_S:
                raise RuntimeError(f"the demo did not start: {log.read_text()[-300:]}")
            time.sleep(0.05)
        return time.monotonic() - began
    finally:
        process.terminate()
        process.wait()
        _run(*command, "berth", "down", env=kept | settings)


def _cache() -> str:
    return _run(UV, "cache", "dir").strip()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/login", timeout=5) as answer:
            return bool(re.search(rb"<form", answer.read()))
    except OSError:
        return False


def _run(*command: object, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, env=env)
    return done.stdout
