"""Floods a page: ``flood.py --points P --lines L --seconds S [--spikes N]``; point i has the value i, so sums tell what is missing."""

import argparse
import json
import os
import time
from pathlib import Path

ROUNDS_A_SECOND = 20
SPIKE = 1_000.0  # the first; each further one is one higher, on noise below one

parser = argparse.ArgumentParser()
parser.add_argument("--points", type=int, default=0)
parser.add_argument("--lines", type=int, default=0)
parser.add_argument("--seconds", type=float, default=0)
parser.add_argument("--spikes", type=int, default=0)
given = parser.parse_args()

planted = {
    (2 * number + 1) * given.points // (2 * given.spikes) + 7: SPIKE + number
    for number in range(given.spikes)
}
rounds = max(1, round(given.seconds * ROUNDS_A_SECOND))
began = time.monotonic()
with Path(os.environ["BERTH_METRICS_FILE"]).open("a") as file:
    for turn in range(rounds):
        for step in range(given.points * turn // rounds, given.points * (turn + 1) // rounds):
            value = planted.get(step, step % 97 / 97) if given.spikes else step
            file.write(json.dumps({"step": step, "flood": value}) + "\n")
        file.flush()
        first, last = given.lines * turn // rounds, given.lines * (turn + 1) // rounds
        if last > first:
            print("\n".join(f"line {number}" for number in range(first, last)), flush=True)
        time.sleep(max(0.0, began + (turn + 1) / ROUNDS_A_SECOND - time.monotonic()) if given.seconds else 0)
    if given.lines and given.spikes:
        print("the needle", flush=True)
time.sleep(600)  # the page goes on watching a running job
