"""Reports seven curves: the first steps at once, then ten a second.

``curves.py [--lr X] [--steps N] [--at-once N] [--hold-mib N] [--work-ms N]``; the members of an array differ.
"""

import argparse
import json
import math
import os
import random
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=3e-4)
parser.add_argument("--steps", type=int, default=20_000)
parser.add_argument("--at-once", type=int, default=5_000)
parser.add_argument("--hold-mib", type=int, default=0, help="memory that is in use all the time")
parser.add_argument("--work-ms", type=float, default=0, help="processor time of a step")
given = parser.parse_args()
noise = random.Random(1 + int(os.environ.get("BERTH_ARRAY_INDEX") or 0)).random  # noqa: S311  # noise, no secret
held = b"\1" * (given.hold_mib << 20)
speed = 4_000 * (3e-4 / given.lr) ** 0.3

# One rank reports; the others keep it company.
is_first = os.environ.get("RANK", "0") == "0"
with Path(os.environ["BERTH_METRICS_FILE"] if is_first else os.devnull).open("a") as file:
    for step in range(given.steps):
        loss = 3 * math.exp(-step / speed) + 0.5
        point = {
            "step": step,
            "train/loss": loss + noise() * 0.3,
            "val/loss": loss + 0.2 + noise() * 0.1,
            "tokens_per_s": 5e5 + noise() * 2e4,
            "lr": given.lr * (1 - step / given.steps),
            "grad_norm": noise() * 2,
            "layers/first": noise(),
            "layers/last": noise(),
        }
        file.write(json.dumps(point) + "\n")
        if step >= given.at_once or step % 500 == 0:
            file.flush()
        if step % 20 == 0:
            print(f"step {step} loss {loss:.3f} lr {point['lr']:.2e}", flush=True)
        if step >= given.at_once:
            worked_until = time.thread_time() + given.work_ms / 1000
            while time.thread_time() < worked_until:
                pass
            time.sleep(0.1)
