"""Gives the training function of a known trainer the checkpoint that Berth chose for this attempt."""

import functools
import inspect
import os
import re
import sys
import time
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

from ..rank.import_hook import ImportHook  # noqa: TID252 -- the entry loads the room under another name
from .trainers import TRAINERS, WATCHED, Call, Mark

MOST_NOTED_BYTES = 40  # two lines: that a second training began is enough to know
MOST_PICKLED_BYTES = 64 << 20


def start() -> ImportHook:
    """Watch the imports of trainers from now on, in a process of the run."""
    environment = os.environ
    checkpoint = environment.get("BERTH_RESUME_FROM") if environment.get("BERTH_RESUME_TRAINER") else None
    # A command's own launcher may name ranks by LOCAL_RANK alone, as Lightning's does.
    rank = environment.get("RANK", environment.get("LOCAL_RANK", "0"))
    notes = f"{environment['BERTH_ATTEMPT_FOLDER']}/logs/rank{rank}.trainings"
    return ImportHook(WATCHED, Resumer(checkpoint, notes).wrap)


class Resumer:
    """Lets an attempt's first training continue from the checkpoint; later ones are of other models.

    Args:
        checkpoint: a file or folder; None on a first attempt, or where nothing tells which training wrote it.
        notes: a file of this rank that gets the times at which its first trainings began, a command's among them
            several processes.  The launcher learns from them which training a checkpoint is of.
    """

    def __init__(self, checkpoint: str | None, notes: str) -> None:
        self._checkpoint, self._notes = checkpoint, notes

    def wrap(self, module: ModuleType) -> None:
        """Wrap the training functions of a module; those that this version of it lacks are left out."""
        for trainer in TRAINERS:
            for call in trainer.calls:
                if call.module != module.__name__:
                    continue
                owner, _, name = call.function.rpartition(".")
                holder = getattr(module, owner, None)
                original = getattr(holder, name, None)
                if callable(original):
                    with suppress(AttributeError, TypeError):
                        setattr(holder, name, self._wrapped(original, call, trainer.marks))

    def _wrapped(self, original: Callable[..., Any], call: Call, marks: tuple[Mark, ...]) -> Any:
        names = ("self", *call.arguments.split())

        @functools.wraps(original)
        def resuming(*args: Any, **kwargs: Any) -> Any:
            is_first = self._note()
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            if is_first and self._is_wanted(call, given) and is_own(self._checkpoint, marks):
                args, kwargs = _with(original, names, args, kwargs, call, str(self._checkpoint))
                sys.stderr.write(f"Berth: {call.function} continues from {self._checkpoint}\n")
            return original(*args, **kwargs)

        return resuming

    def _note(self) -> bool:
        """Note that a training begins; whether it is the attempt's first."""
        try:
            with open(self._notes, "ab", buffering=0) as file:  # noqa: PTH123 -- no pathlib here
                before = file.tell()
                if before < MOST_NOTED_BYTES:
                    file.write(b"%d\n" % time.time_ns())
        except OSError:  # the disk is full
            return False
        return before == 0

    def _is_wanted(self, call: Call, given: Mapping[str, Any]) -> bool:
        """Whether there is a checkpoint, and the script named none itself."""
        free = given.get(call.argument) is None and given.get(call.unless) is None
        return self._checkpoint is not None and free


def is_own(checkpoint: str | None, marks: tuple[Mark, ...]) -> bool:
    """Whether a file or folder has the marks of a trainer's checkpoint."""
    if checkpoint is None:
        return False
    pickled = _pickled(checkpoint)
    return any(
        os.path.isfile(f"{checkpoint}/{mark.file}")  # noqa: PTH113
        if mark.file
        else re.search(mark.pickled, pickled)
        and not (mark.never and re.search(mark.never, pickled, re.DOTALL))
        for mark in marks
    )


def _pickled(path: str) -> bytes:
    """The pickle in a file of ``torch.save``, which names its content and holds no tensor; empty for another file."""
    try:
        with zipfile.ZipFile(path) as file:
            inner = next((each for each in file.infolist() if each.filename.endswith("/data.pkl")), None)
            return file.read(inner) if inner and inner.file_size <= MOST_PICKLED_BYTES else b""
    except (OSError, zipfile.BadZipFile):
        return b""


def _with(
    original: Callable[..., Any],
    names: tuple[str, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    call: Call,
    checkpoint: str,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with the checkpoint among them; None in its place is replaced."""
    known = inspect.signature(original).parameters
    values = {call.argument: checkpoint, **{name: value for name, value in call.also if name in known}}
    for name, value in values.items():
        place = names.index(name) if name in names else len(args)
        if place < len(args):
            if args[place] is None:
                args = (*args[:place], value, *args[place + 1 :])
        elif kwargs.get(name) is None:
            kwargs[name] = value
    return args, kwargs
