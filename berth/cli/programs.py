"""Tells whether words behind a folder are a command or the arguments of its script: "berth run . -- bash run.sh"."""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "mpirun", "horovodrun"})
_RUNNERS = frozenset({"uv", "poetry", "pixi"})
_MAKEFILES = ("Makefile", "makefile", "GNUmakefile")
_PYTHON = re.compile(r"python\d{0,2}(?:\.\d{1,3})?")
_OTHERS = frozenset({"make", "ipython", "jupyter", "julia", "Rscript"})
_PROGRAMS = _SHELLS | _LAUNCHERS | _RUNNERS | _OTHERS
_BEFORE_CODE = re.compile(r"-[A-Za-z]{0,5}[mceE]|--module|--eval")  # python -um, julia -e
_BEFORE_LINE = re.compile(r"-[a-z]{0,9}c")  # bash -lc
# python -W ignore, bash -euo pipefail, bash --rcfile x, julia -t 4
_BEFORE_VALUE = re.compile(r"-[WXtp]|-[a-z]{0,9}o|--rcfile|--init-file|--threads|--procs|--project")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def names_program(folder: Path, words: Sequence[str]) -> bool:
    """Whether the first word is a program's name, or a file of the folder as a shell starts it: ``./x``."""
    word = _behind_env(words)[0]
    return _is_known(word) or (word.startswith("./") and _has(folder, word))


def is_program(word: str) -> bool:
    """Whether a word is the name of a program: of one that servers have, or of one of this machine."""
    return _is_known(word) or shutil.which(word) is not None


def is_command(folder: Path, words: Sequence[str]) -> bool:
    """Whether words are sure to be a command: a known program and what it starts, or a file that can be started.

    Args:
        folder: in which the job runs.
        words: not empty.
    """
    words = _behind_env(words)
    if words[0].startswith("./"):
        return _starts_itself(folder, words[0])
    name, arguments = words[0].rpartition("/")[2], words[1:]
    if not _is_known(words[0]):
        return False
    if name in _RUNNERS:
        return len(arguments) > 1 and arguments[0] == "run"
    if name == "jupyter":
        return bool(arguments)
    if name in _LAUNCHERS:
        return any(_BEFORE_CODE.fullmatch(word) or _has(folder, word) for word in arguments)
    if name == "make":
        below = arguments[1] if len(arguments) > 1 and arguments[0] == "-C" else "."
        return any(_has(folder, f"{below}/{makefile}") for makefile in _MAKEFILES)
    return _starts_code(folder, name, arguments)


def _behind_env(words: Sequence[str]) -> Sequence[str]:
    """The words behind "env A=1"."""
    if words[0].rpartition("/")[2] != "env":
        return words
    at = next((at for at, word in enumerate(words[1:], 1) if not _ASSIGNMENT.match(word)), 0)
    return words[at:]


def _is_known(word: str) -> bool:
    name = word.rpartition("/")[2]
    return name in _PROGRAMS or _PYTHON.fullmatch(name) is not None


def _starts_code(folder: Path, name: str, arguments: Sequence[str]) -> bool:
    """Whether an interpreter gets code: a module, a line, or a file of the folder behind its options."""
    before_code = _BEFORE_LINE if name in _SHELLS else _BEFORE_CODE
    is_value = False
    for at, word in enumerate(arguments):
        if before_code.fullmatch(word):
            return at + 1 < len(arguments)
        if not is_value and not word.startswith("-"):
            return _has(folder, word)
        is_value = not is_value and _BEFORE_VALUE.fullmatch(word) is not None
    return False


def _has(folder: Path, word: str) -> bool:
    return not word.startswith("/") and os.path.isfile(folder / word)  # noqa: PTH113 -- raises for no name


def _starts_itself(folder: Path, word: str) -> bool:
    if not _has(folder, word):
        return False
    path = folder / word
    if os.access(path, os.X_OK):
        return True
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False
