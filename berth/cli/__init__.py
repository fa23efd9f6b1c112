"""The ``berth`` command line: a client of REST, without Django."""

import gc
import sys
from types import ModuleType
from typing import cast

# What typer and rich import and nothing here uses; nearly half of what `berth --help` takes.
NOT_THERE = ("httpx._main", "attr")
ONLY_NAMED = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}


def main() -> None:
    """What the script ``berth`` runs; does not return."""
    gc.disable()  # imports make no garbage, and looking for it takes a tenth of the start; see connect()
    leave_out_what_is_not_used()
    from berth.cli.app import start

    start(sys.argv[1:])


def leave_out_what_is_not_used() -> None:
    """Keep modules from being imported: None stands for "not there", an empty class for a name in annotations."""
    loaded = cast(dict[str, object], sys.modules)
    for name in NOT_THERE:
        loaded.setdefault(name, None)
    for name, only in ONLY_NAMED.items():
        if name not in loaded:
            empty = ModuleType(name)
            setattr(empty, only, type(only, (), {}))
            loaded[name] = empty
