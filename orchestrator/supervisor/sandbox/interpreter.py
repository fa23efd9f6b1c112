"""Finds the folders that a Python needs, without starting it; the launch record may name more."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

# Python's own folders in a prefix that is shared with other files, such as ~ or ~/.local.
_PARTS = ("bin", "lib", "lib64", "include")
_MOST_STEPS = 4096  # in a path whose links form a circle


def roots(python: Path) -> list[Path]:
    """The virtual environment of ``python`` and the installation that it is based on.

    The interpreter of a virtual environment may be a copy; then only ``pyvenv.cfg`` names the installation.
    """
    interpreter = Path(os.path.realpath(python))
    folders = [interpreter.parent.parent]
    for start in (python, interpreter):
        environment = start.parent.parent
        home = _home_in(environment / "pyvenv.cfg")
        if home is not None:
            folders += [environment, home.parent]
    return list(dict.fromkeys(folders))


def narrow(root: Path, hidden: Iterable[Path]) -> list[Path]:
    """``root``, or only Python's own folders in it if all of it would expose hidden folders or personal files."""
    if root.name != ".local" and not any(path.is_relative_to(root) for path in hidden):
        return [root]
    return [root / name for name in _PARTS if (root / name).is_dir()]


def walk_links(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield each symbolic link in ``path`` with its target; last the resolved path, with an empty text."""
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
            target = os.readlink(step)  # noqa: PTH115 -- the text, unresolved
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
    """The folder of the interpreter that a virtual environment is based on."""
    try:
        lines = config.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition("=")
        if name.strip().lower() == "home" and value.strip():
            return Path(value.strip())
    return None
