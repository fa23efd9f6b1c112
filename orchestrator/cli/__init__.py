"""The ``berth`` command line: a client of REST, without Django."""

import gc
import sys
from typing import cast


def main() -> None:
    """What the script ``berth`` runs; does not return."""
    gc.disable()  # imports make no garbage, and looking for it takes a tenth of the start; see connect()
    # httpx would import its own command line, which costs 15 ms of every start; None stands for "not there".
    cast(dict[str, object], sys.modules).setdefault("httpx._main", None)
    from orchestrator.cli.app import start

    start(sys.argv[1:])
