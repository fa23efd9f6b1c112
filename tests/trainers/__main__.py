"""``python -m tests.trainers``: runs trainers of other packages on a real server, and keeps what was seen.

Needs a package index.  Rows that are not run keep the result that they had.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.system.server import Server, prepare_once
from tests.tools.parts import say
from tests.trainers import course, page
from tests.trainers.rows import ROWS, Row

MOST_TOLD = 160


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trainers", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[[], *(row.name for row in ROWS)], help="rows; all by default"
    )
    parser.add_argument("--ranks", type=int, choices=(1, 2), help="only with this number of ranks")
    parser.add_argument("--home", type=Path, help="folder that keeps the packages for the next time")
    chosen = parser.parse_args()
    rows = [row for row in ROWS if not chosen.names or row.name in chosen.names]
    folder = chosen.home or Path(tempfile.mkdtemp(prefix="berth-trainers-"))
    prepared = prepare_once(folder)
    server = Server(prepared.home, prepared.token, "cpu:2")
    try:
        server.start()
        runs = [(row, ranks) for row in rows for ranks in row.ranks if chosen.ranks in {None, ranks}]
        return max([_run(server, row, ranks) for row, ranks in runs], default=0)
    finally:
        server.clean_up()
        if chosen.home is None:
            shutil.rmtree(folder, ignore_errors=True)


def _run(server: Server, row: Row, ranks: int) -> int:
    """Run one row and keep its result; 1 for a row that failed, whose log is printed."""
    began_s = time.monotonic()
    try:
        result = course.run(server, row, ranks)
    except AssertionError as error:
        server.leave_idle()
        say(f"{row.name} with {ranks} ranks: {error}")
        first = str(error).partition("\n")[0][:MOST_TOLD]
        date = time.strftime("%Y-%m-%d", time.gmtime())
        page.keep({"trainer": row.name, "ranks": ranks, "version": "", "date": date, "failed": first})
        return 1
    page.keep(result)
    say(f"{row.name} with {ranks} ranks: {result} in {time.monotonic() - began_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
