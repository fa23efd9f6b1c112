"""``python -m tests.chaos``: runs a campaign and keeps its figures in benchmarks/results/chaos.json."""

import argparse
import sys
import time

from benchmarks.figures import RESULTS, read_host, read_load, read_versions
from benchmarks.stats import percentile
from tests.chaos.campaign import Result, run, write_json
from tests.tools.parts import say

NODES = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--without", action="append", default=[], help="a control to switch off; must end badly"
    )
    parser.add_argument("--sweeps", type=int, default=1, help="sweeps that run at once")
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="ray: three servers join it, and are hurt too",
    )
    chosen = parser.parse_args()
    nodes, name = (NODES, "chaos_ray") if chosen.engine == "ray" else (0, "chaos")
    load_before = read_load()
    result = run(
        chosen.faults,
        chosen.seed,
        without=chosen.without,
        nodes=nodes,
        tell=say,
        most_sweeps=chosen.sweeps,
    )
    figures = figures_of(result)
    for line in result.findings.lines():
        say(line)
    say("  ".join(f"{name} {value}" for name, value in figures.items()))
    if not chosen.without:
        record = {
            "benchmark": name,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "host": read_host(),
            "versions": read_versions(),
            "load": {"before": load_before, "after": read_load()},
            "seed": chosen.seed,
            "figures": figures,
            "findings": result.findings.lines(),
            "faults": result.faults,
        }
        write_json(RESULTS / f"{name}.json", record)
    return 0 if result.clean else 1


def figures_of(result: Result) -> dict[str, float | int | None]:
    recoveries_s = result.recoveries_s()
    return {
        "faults": len(result.faults),
        **result.findings.counts(),
        "not_recovered": len(result.faults) - len(recoveries_s),
        "mttr_p50_s": round(percentile(recoveries_s, 50), 2) if recoveries_s else None,
        "mttr_p95_s": round(percentile(recoveries_s, 95), 2) if recoveries_s else None,
        "jobs": result.jobs,
        "attempts": result.attempts,
        "sweeps": result.sweeps,
        "trials": result.trials,
        **({"fenced_max_s": round(max(result.fenced_s), 1)} if result.fenced_s else {}),
        "took_s": round(result.took_s),
    }


if __name__ == "__main__":
    sys.exit(main())
