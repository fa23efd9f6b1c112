"""Wraps the functions of trackers once the script has loaded them."""

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from ..rank.import_hook import ImportHook  # noqa: TID252 -- the entry loads the room under another name
from .calls import STEP_NAMES, WRAPPED, Call, Showing
from .gallery import Gallery
from .lengths import LENGTHS, Length
from .lines import Lines
from .objects import Value, images_of, object_in, values_in
from .offline import OfflineRuns
from .values import MOST_VALUES, Numbers, name_of, numbers_of, scalars

OWN_THREAD = "berth-report"  # its TensorBoard sink writes what is reported already


class Tee:
    """Wraps the functions of trackers once their modules are loaded."""

    def __init__(self, lines: Lines | None, gallery: Gallery | None = None) -> None:
        self._lines = lines
        self._gallery = gallery if gallery is not None and gallery.active else None
        self._inside = threading.local()
        self._steps: dict[tuple[str, int, str], int] = {}  # the next one of calls without a step
        self._folders: list[str] = []
        self._told: set[str] = set()
        self._length: int | None = None

    def wrap(self, module: ModuleType) -> None:
        """Wrap what the table has of a module.

        Functions that this version of a tracker lacks, or does not let anybody replace, are left out.
        """
        if module.__name__ == "wandb" and hasattr(module, "login") and hasattr(module, "init"):
            OfflineRuns(module)
        for call in WRAPPED if self._lines is not None else ():
            if call.module == module.__name__:
                self._wrap_call(module, call)
        for length in LENGTHS if self._lines is not None else ():
            if length.module == module.__name__:
                self._wrap_length(module, length)

    def _wrap_call(self, module: ModuleType, call: Call | Showing) -> None:
        owner, _, name = call.function.rpartition(".")
        holder = getattr(module, owner, None) if owner else module
        original = getattr(holder, name, None)
        if callable(original):
            with suppress(AttributeError, TypeError):
                setattr(holder, name, self._wrapped(original, call))

    def _wrap_length(self, module: ModuleType, length: Length) -> None:
        owner, _, name = length.function.rpartition(".")
        holder = getattr(module, owner, None)
        original = getattr(holder, name, None)
        if not callable(original):
            return

        @functools.wraps(original)
        def measured(loop: Any, *args: Any, **kwargs: Any) -> Any:
            answer = original(loop, *args, **kwargs)
            self._tell_length(length, loop)
            return answer

        setattr(holder, name, measured)

    def _tell_length(self, length: Length, loop: Any) -> None:
        """Tell how long the training is, again only if that changes; a surprise never reaches the script."""
        try:
            steps = length.steps_of(loop)
        except Exception:  # noqa: BLE001 -- another version of the trainer may have other attributes
            steps = None
        if steps is not None and steps != self._length and self._lines is not None and self._lines.active:
            self._length = steps
            self._lines.tell_total(length.trainer, steps)

    def _wrapped(self, original: Callable[..., Any], call: Call | Showing) -> Callable[..., Any]:
        names = (*(["self"] if "." in call.function else []), *call.arguments.split())
        inside = self._inside

        @functools.wraps(original)
        def teed(*args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "call", False):  # a tracker's functions call each other
                return original(*args, **kwargs)
            inside.call = True
            try:
                given = dict(zip(names, args, strict=False))
                given.update(kwargs)
                self._note(call, given)
                return original(*args, **kwargs)
            finally:
                inside.call = False

        return teed

    def _note(self, call: Call | Showing, given: Mapping[str, Any]) -> None:
        """Take the values of a call.  The log names a surprise once; it never reaches the script."""
        try:
            if type(call) is Call:
                self._take(call, given)
            elif type(call) is Showing:
                self._show(call, given)
        except Exception as error:  # noqa: BLE001 -- values of other people's types may raise anything
            if call.function not in self._told:
                self._told.add(call.function)
                with suppress(AttributeError, OSError, ValueError):  # the script closed or replaced it
                    sys.stderr.write(
                        f"Berth could not read a call of {call.tracker} ({type(error).__name__}: {error}).\n"
                    )

    def _take(self, call: Call, given: Mapping[str, Any]) -> None:
        lines = self._lines
        if lines is None or not lines.active:
            return
        owner = given.get("self")
        name = self._name(call, owner, given)
        if name is None:
            return
        if call.tracker not in self._told:
            self._told.add(call.tracker)
            lines.announce(call.tracker)
        value = given.get(call.value)
        if isinstance(value, (list, tuple)) and any(hasattr(each, "key") for each in value[:1]):
            for each in value[:MOST_VALUES]:
                lines.add(call.tracker, max(0, int(each.step)), scalars({str(each.key): each.value}))
            return
        values = {} if isinstance(value, (list, tuple)) else numbers_of(value, name)
        is_all_numbers = len(values) == (len(value) if type(value) is dict else 1)
        step = self._step(call, owner, given, values, name)
        if values:
            lines.add(call.tracker, step, values)
        if not is_all_numbers:
            self._keep(call.tracker, step, values_in(value, name))

    def _show(self, call: Showing, given: Mapping[str, Any]) -> None:
        """Take the image, histogram, table or text that a function is for."""
        owner = given.get("self")
        lines, name = self._lines, self._name(call, owner, given)
        if lines is None or not lines.active or name is None:
            return
        named = (given[each] for each in call.value.split() if given.get(each) is not None)
        value, step = next(named, None), given.get(call.step)
        if call.kind != "image" and value is None:
            return
        number = lines.step if step is None else max(0, int(step))
        self._keep(call.tracker, number, _shown_in(call, value, name, given))

    def _keep(self, tracker: str, step: int, values: Iterable[Value]) -> None:
        lines, gallery = self._lines, self._gallery
        if lines is not None and gallery is not None:
            gallery.take(tracker, step, values)
            lines.wake()

    def _name(self, call: Call | Showing, owner: Any, given: Mapping[str, Any]) -> str | None:
        """The name of a call's value, or of several values' prefix; None for a writer of our own."""
        name = name_of([given.get(part) for part in call.name.split()]) if call.name else ""
        if not call.folder:
            return name
        if threading.current_thread().name == OWN_THREAD:
            return None
        return f"{self._prefix(str(getattr(owner, call.folder, '')))}{name}"

    def _step(self, call: Call, owner: Any, given: Mapping[str, Any], values: Numbers, name: str) -> int:
        """The step that the call names, or a count of the calls; it is taken out of the values."""
        step = given.get(call.step)
        if name not in values:  # several values by name
            named = [values.pop(known) for known in STEP_NAMES if known in values]
            step = named[0] if step is None and named else step
        stream = (call.function, id(owner) if call.first_step else 0, name)
        if step is None:
            step = self._steps.get(stream)
            if step is None and call.first_step:
                step = getattr(owner, call.first_step, None)
        number = step if type(step) is int and step >= 0 else max(0, int(step or 0))
        self._steps[stream] = number if given.get("commit") is False else number + 1
        return number

    def _prefix(self, folder: str) -> str:
        """What tells curves of several writers apart: the folder, relative to the first writer's."""
        if not self._folders and folder:
            self._folders.append(folder)
        first = self._folders[0] if self._folders else ""
        if folder in {first, ""}:
            return ""
        return f"{folder.removeprefix(f'{first}/') if folder.startswith(f'{first}/') else Path(folder).name}/"


def _shown_in(call: Showing, value: Any, name: str, given: Mapping[str, Any]) -> Iterator[Value]:
    if objects := list(object_in(value, name)):
        yield from objects
    elif call.kind == "image":
        defaults = {"add_image": "CHW", "add_images": "NCHW"}
        layout = str(given.get(call.layout) or defaults.get(call.function.rpartition(".")[2], ""))
        yield from images_of(value, layout, name, is_unit=call.is_unit)
    elif call.kind == "text":
        yield Value("text", name, lambda: str(value))
    elif call.kind == "table" and isinstance(given.get("headers"), list):
        yield Value("table", name, lambda: {"columns": given["headers"], "rows": value})
    else:
        yield Value(call.kind, name, lambda: value)


def start(metrics_file: str | None) -> ImportHook:
    """Watch the imports of trackers from now on; without a file only W&B's mode is looked after."""
    gallery = Gallery() if metrics_file else None
    tee = Tee(Lines(metrics_file, gallery) if metrics_file else None, gallery)
    watched = {call.module for call in WRAPPED} | {length.module for length in LENGTHS}
    return ImportHook(watched | {"wandb"}, tee.wrap)
