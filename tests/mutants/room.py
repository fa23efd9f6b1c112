"""A room of the tree: its modules, its tests, and which of its faults are known to change nothing."""

import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tests.mutants.faults import Fault, faults_of
from tests.tools.choice import ROOT, room_of

EQUIVALENT = Path(__file__).parent / "equivalent.toml"
PARENTS = ("", "orchestrator/", "dashboard/", "training/")


class NoSuchRoom(Exception):
    """A name fits no folder or module with tests."""


@dataclass(frozen=True)
class Room:
    files: Sequence[str]
    tests: Sequence[str]


def find_room(name: str, root: Path = ROOT) -> Room:
    """A room by its path or its name: ``orchestrator/store``, ``store``, ``scheduler/core/decide.py``.

    Raises:
        NoSuchRoom: with a sentence for the terminal.
    """
    path = next(
        (root / parent / name for parent in PARENTS if name and (root / parent / name).exists()), None
    )
    if path is None:
        raise NoSuchRoom(
            f"There is no room {name!r} here; name a folder or a module, such as orchestrator/store."
        )
    modules = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    files = [str(module.relative_to(root)) for module in modules if "migrations" not in module.parts]
    tests = room_of(files[0], root) if files else None
    if tests is None:
        raise NoSuchRoom(f"{name!r} has no modules, or no folder of tests that mirrors it.")
    return Room(files, [tests])


def sample(room: Room, count: int, seed: int, root: Path = ROOT) -> tuple[list[Fault], int]:
    """So many faults at random, and how many known equivalents were left out of all there are."""
    faults = [fault for file in room.files for fault in faults_of(root, file)]
    known = {(each["file"], each["function"], each["old"], each["new"]) for each in equivalents()}
    chosen = [f for f in faults if (f.file, f.function, f.old, f.new) not in known]
    random.Random(seed).shuffle(chosen)  # noqa: S311  # a seeded sample, not a secret
    texts = {file: (root / file).read_text() for file in room.files}
    fitting = (fault for fault in chosen if fault.fits(texts[fault.file]))
    return list(islice(fitting, count)), len(faults) - len(chosen)


def equivalents() -> list[dict[str, str]]:
    """The checked-in list: file, function, old, new and reason of each."""
    return list(tomllib.loads(EQUIVALENT.read_text()).get("fault", []))
