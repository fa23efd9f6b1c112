"""What a release needs: wheel and source distribution, a bill of materials, and an audit of the locked packages.

python -m deploy.release --dist     builds only
python -m deploy.release            builds, checks, writes the bill, audits: `make release-check`
"""

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from berth import __version__

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "build" / "dist"
LOCKS = ("base", "test", "docs")
# Both run by uv in environments of their own; of the ranges that were tried.
SBOM_TOOL = "cyclonedx-bom>=7,<8"
AUDIT_TOOL = "pip-audit>=2.9,<3"


def problems(root: Path = ROOT) -> Iterator[str]:
    """What of a clone contradicts the version that it says it is."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    if project["version"] != __version__:
        yield f"pyproject.toml says version {project['version']}, berth/__init__.py {__version__}."
    headings = re.findall(r"^## (.+)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if not any(heading.split()[0] == __version__ for heading in headings):
        yield f"CHANGELOG.md has no section {__version__}: rename Unreleased, and begin another above."
    workflow = (root / ".github" / "workflows" / "ci.yml").read_text()
    named = {each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)}
    untried = sorted(version for version in named if f'"{version}"' not in workflow)
    if untried:
        yield f"The metadata promise Python {', '.join(untried)}, which .github/workflows/ci.yml does not try."
    untried = [version for version in _ends_of_torch(project) if f'"{version}"' not in workflow]
    if untried:
        yield f"The extra training allows torch {', '.join(untried)}, which .github/workflows/ci.yml does not try."


def _ends_of_torch(project: dict[str, Any]) -> list[str]:
    """The oldest and the newest minor version in the range of torch, such as 2.10 and 2.13."""
    needs = " ".join(project.get("optional-dependencies", {}).get("training", []))
    found = re.search(r"\btorch>=(\d+)\.(\d+),<\1\.(\d+)", needs)
    if found is None:
        return []
    major, oldest, above = found.groups()
    return [f"{major}.{oldest}", f"{major}.{int(above) - 1}"]


def build() -> None:
    """Build the source distribution, and the wheel from it."""
    shutil.rmtree(DIST, ignore_errors=True)
    _run("uv", "build", "--quiet", "--out-dir", str(DIST), str(ROOT))


def sbom_command(target: Path) -> list[str]:
    """Write the locked packages of the server as a bill of materials in CycloneDX's JSON."""
    source = ["requirements", "requirements/base.txt", "--pyproject", "pyproject.toml"]
    return [
        "uv",
        "tool",
        "run",
        "--from",
        SBOM_TOOL,
        "cyclonedx-py",
        *source,
        "--of",
        "JSON",
        "-o",
        str(target),
    ]


def audit_command(lock: str) -> list[str]:
    """Look for known vulnerabilities; a package that cannot be looked up is a failure, too."""
    chosen = ["--requirement", f"requirements/{lock}.txt", "--require-hashes", "--disable-pip", "--strict"]
    return ["uv", "tool", "run", "--from", AUDIT_TOOL, "pip-audit", *chosen, "--progress-spinner", "off"]


def check() -> int:
    """Do all of it; the number of things that are not fit for a release."""
    failures = list(problems())
    build()
    commands = {"bill of materials": sbom_command(DIST / f"berth-gpu-{__version__}.cdx.json")}
    commands |= {f"audit of requirements/{lock}.txt": audit_command(lock) for lock in LOCKS}
    for name, command in commands.items():
        if status := _status(command):
            failures.append(f"{name}: exit status {status}, see above.")
    for failure in failures:
        sys.stdout.write(f"berth: {failure}\n")
    sys.stdout.write(f"berth: {DIST} holds {', '.join(sorted(path.name for path in DIST.glob('berth*')))}\n")
    return len(failures)


def _run(*command: str) -> None:
    if status := _status(command):
        sys.exit(status)


def _status(command: Sequence[str]) -> int:
    program = Path(sys.executable).with_name(command[0])  # uv beside this Python, whatever PATH says
    return subprocess.run([program, *command[1:]], cwd=ROOT, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dist", action="store_true", help="build only")
    if parser.parse_args().dist:
        build()
        sys.stdout.write(f"berth: built into {DIST}\n")
        return
    sys.exit(1 if check() else 0)


if __name__ == "__main__":
    main()
