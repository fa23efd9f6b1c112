"""``python -m benchmarks.following LINES``: what the agent's Follower takes in; prints points, seconds and bytes.

A process of its own: Django belongs to one home for good.
"""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import django

if TYPE_CHECKING:
    from orchestrator.models import Attempt

VALUES = 5  # a line


def main(lines: int) -> None:
    django.setup()
    from django.conf import settings  # all of these only after the set-up

    from orchestrator.agent.follow import Follower

    attempt = _ended_attempt()
    job_folder = settings.HOME.job(attempt.job_id)
    metrics_file = job_folder.attempt(attempt.number).metrics
    metrics_file.parent.mkdir(parents=True)
    write_lines(metrics_file, lines)
    follower = Follower(attempt)
    began = time.perf_counter()
    while follower.poll():
        pass
    took_s = time.perf_counter() - began
    points = follower.writer.seq
    follower.close()
    if points < lines * VALUES:
        raise RuntimeError(f"{points} points were kept of {lines * VALUES}")
    stored_bytes = sum(path.stat().st_size for path in job_folder.metrics.rglob("*") if path.is_file())
    print(points, took_s, stored_bytes)


def _ended_attempt() -> "Attempt":
    """An attempt that the running agent leaves alone."""
    from django.contrib.auth import get_user_model

    from orchestrator.models import Attempt, AttemptState, Job, JobState
    from orchestrator.spec.job_spec import JobSpec

    now = datetime.now(UTC)
    job = Job.objects.create(
        owner=get_user_model().objects.get(username="admin"),
        pool_id="default",
        name="ingest",
        spec_fields=JobSpec().model_dump(mode="json"),
        bundle="",
        state=JobState.SUCCEEDED,
        submitted_at=now,
        queued_at=now,
        ended_at=now,
    )
    return Attempt.objects.create(job=job, number=1, nonce="", state=AttemptState.ENDED, created_at=now)


def write_lines(path: Path, lines: int) -> None:
    """A metrics file as ``training.report`` writes it, of a run with a hundred steps a second."""
    from training.events import metric_line

    began = time.time()
    with path.open("wb") as file:
        for step in range(lines):
            values = {
                "loss": 4.0 / (1 + step / 1000),
                "lr": 3e-4,
                "grad_norm": 1.0 + step % 7 / 10,
                "tokens_per_s": 120_000.0 + step % 100,
                "accuracy": step / lines,
            }
            file.write(metric_line(step, began + step / 100, values))


if __name__ == "__main__":
    main(int(sys.argv[1]))
