"""``python -m benchmarks [NAME]``: measures, prints a table, and keeps it in ``benchmarks/results/NAME.json``."""

import argparse
import importlib
import signal
import subprocess
import sys

from benchmarks.figures import LONG, NAMES, Outcome, describe, read_load, show_in_readme, table, write_result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "name", nargs="?", choices=NAMES + LONG, help="one benchmark; without it all but the soak"
    )
    name = parser.parse_args().name
    if name is None:
        # A process each: what one has loaded or opened must not count for the next.
        return max(subprocess.run([sys.executable, "-m", "benchmarks", each]).returncode for each in NAMES)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped on the way out
    module = importlib.import_module(f"benchmarks.{name}")
    load_before = read_load()
    outcome: Outcome = module.measure()
    record = write_result(name, module.FIGURES, outcome, load_before)
    text = f"{table(name, module.FIGURES, outcome)}\n{describe(record)}\n"
    show_in_readme(name, text)
    print(f"{text}\nMore in benchmarks/results/{name}.json\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
