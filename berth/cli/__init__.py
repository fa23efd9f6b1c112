"""The ``berth`` command line: a client of REST, without Django."""

import gc
import sys
from types import ModuleType
from typing import cast

# Imports of typer and rich that no command uses: nearly half of the time of `berth --help`.
NOT_THERE = ("httpx._main", "attr")
ONLY_NAMED = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}


def main() -> None:
    """Entry point of the script ``berth``; does not return."""
    gc.disable()  # imports make no garbage, and the collector takes a tenth of the start; connect() enables it
    leave_out_what_is_not_used()
    from berth.cli.app import start

    start(sys.argv[1:])


def leave_out_what_is_not_used() -> None:
    """Block unused imports: None stands for a missing module, an empty class for a name in annotations."""
    loaded = cast(dict[str, object], sys.modules)
    for name in NOT_THERE:
        loaded.setdefault(name, None)
    for name, only in ONLY_NAMED.items():
        if name not in loaded:
            empty = ModuleType(name)
            setattr(empty, only, type(only, (), {}))
            loaded[name] = empty
