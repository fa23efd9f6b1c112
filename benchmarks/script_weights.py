"""What our scripts weigh as browsers get them: stripped, and compressed by brotli (``orchestrator/server/static.py``)."""

import re

import rjsmin

from benchmarks.figures import ROOT, Figure, Outcome
from orchestrator.server.static import QuickCompressor

FIGURES = (
    Figure("scripts_first_kb", "kB", "scripts that the heaviest page loads at once", target=35),
    Figure("scripts_all_kb", "kB", "all scripts together, without the words of other languages", target=60),
)
FOLDER = ROOT / "static" / "js"
WORDS = "words-"  # what scripts say in a language that is not English: texts, no code
_IMPORT = re.compile(r"""(?:from\s+|import\(|import\s+)["']\./([\w-]+\.js)["']""")
_AT_ONCE = re.compile(r"""(?:from\s+|^import\s+)["']\./([\w-]+\.js)["']""", re.MULTILINE)


def imports(*, at_once: bool = False) -> dict[str, set[str]]:
    """The modules that each module imports; ``at_once`` without those that it loads when they are asked for."""
    pattern = _AT_ONCE if at_once else _IMPORT
    return {path.name: set(pattern.findall(path.read_text())) for path in FOLDER.glob("*.js")}


def weight_bytes(names: set[str]) -> int:
    """The bytes that travel for these modules."""
    return sum(
        len(QuickCompressor.compress_brotli(rjsmin.jsmin((FOLDER / name).read_bytes()))) for name in names
    )


def first_bytes() -> dict[str, int]:
    """What travels at once for each module and all that it needs."""
    needs = imports(at_once=True)
    return {entry: weight_bytes(_with_all_they_need(entry, needs)) for entry in needs}


def all_bytes() -> int:
    """What all modules weigh together, but the words of languages, of which a page loads one at most."""
    return weight_bytes({name for name in imports() if not name.startswith(WORDS)})


def measure_scripts(outcome: Outcome) -> None:
    outcome.figures["scripts_first_kb"] = max(first_bytes().values()) / 1000
    outcome.figures["scripts_all_kb"] = all_bytes() / 1000


def _with_all_they_need(entry: str, needs: dict[str, set[str]]) -> set[str]:
    found, waiting = set[str](), {entry}
    while waiting:
        found |= waiting
        waiting = {name for one in waiting for name in needs[one]} - found
    return found
