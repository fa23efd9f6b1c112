"""Who is served first."""

from collections.abc import Iterable

from orchestrator.scheduling.types import QueuedJob


def serve_order(jobs: Iterable[QueuedJob]) -> list[QueuedJob]:
    """Higher priority first, then who came first; ties end on the id."""
    return sorted(jobs, key=lambda job: (-job.priority, job.submitted, job.id))
