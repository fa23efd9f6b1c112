"""A training of a sweep that prints the clock with each step, and goes on from its checkpoint."""

import argparse
import os
import sys
import time
from pathlib import Path

import torch

STEP_S = 0.15


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--bias", type=float)
    options.add_argument("--steps", type=int)
    given = options.parse_args()
    kept = os.environ.get("BERTH_RESUME_FROM")
    done = int(torch.load(kept)["step"]) if kept else 0
    sys.stdout.write(f"began at {time.time():.6f}\n")
    sys.stdout.flush()
    place = Path(os.environ["BERTH_CHECKPOINT_DIR"])
    for step in range(done + 1, given.steps + 1):
        time.sleep(STEP_S)
        torch.save({"step": step}, place / "draft")
        (place / "draft").rename(place / "state.pt")
        sys.stdout.write(
            f"step {step} loss {given.bias + 1 / step:.6f}\nstepped {step} at {time.time():.6f}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
