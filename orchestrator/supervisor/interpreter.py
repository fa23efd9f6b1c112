"""Which folders a Python needs to start, found without starting it; the launch record may name more."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

# What belongs to Python in a prefix that holds other things as well: ~ or ~/.local are prefixes of some.
_PARTS = ("bin", "lib", "lib64", "include")
_MOST_STEPS = 4096  # of a path whose links go in circles


def roots(python: Path) -> list[Path]:
    """The virtual environment of ``python`` and the installation that it was made from.

    The interpreter of a virtual environment may be a copy, so that only ``pyvenv.cfg`` names the installation.
    """
    interpreter = Path(os.path.realpath(python))
    found = [interpreter.parent.parent]
    for start in (python, interpreter):
        environment = start.parent.parent
        home = _home_in(environment / "pyvenv.cfg")
        if home is not None:
            found += [environment, home.parent]
    return list(dict.fromkeys(found))


def narrow(root: Path, hidden: Iterable[Path]) -> list[Path]:
    """``root``, or only Python's own parts of it where all of it would uncover a hidden folder or a person's files."""
    if root.name != ".local" and not any(path.is_relative_to(root) for path in hidden):
        return [root]
    return [root / name for name in _PARTS if (root / name).is_dir()]


def walk_links(path: Path) -> Iterator[tuple[Path, str]]:
    """Each symbolic link on the way to ``path`` and what it holds; at last the path without links, and no text."""
    place, pending = Path("/"), list(reversed(path.parts[1:]))
    for _ in range(_MOST_STEPS):
        if not pending:
            break
        name = pending.pop()
        if name == "..":
            place = place.parent
            continue
        step = place / name
        try:
            target = os.readlink(step)  # noqa: PTH115 -- the text as it is
        except OSError:
            place = step
            continue
        yield step, target
        words = Path(target).parts
        if target.startswith("/"):
            place, words = Path("/"), words[1:]
        pending += reversed(words)
    yield place, ""


def _home_in(config: Path) -> Path | None:
    """The folder of the interpreter that a virtual environment was made from."""
    try:
        lines = config.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition("=")
        if name.strip().lower() == "home" and value.strip():
            return Path(value.strip())
    return None
