"""What a schedule was like for the people who waited: waits, slowdowns, fairness, use of the devices."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from orchestrator.scheduler.simulator.trace import Course

SHORTEST_S = 10.0  # shorter jobs count as this long; otherwise one second of waiting would weigh too much


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one schedule; times in seconds."""

    jobs: int
    mean_wait_s: float
    p95_wait_s: float
    mean_turnaround_s: float
    p95_slowdown: float  # turnaround / time that the job needs
    fairness: float  # Jain's index over the users' slowdowns: 1 where all are slowed equally
    used_percent: float  # of the devices' time, up to the end of the last job
    restarts: int
    makespan_s: float

    def as_json(self) -> dict[str, float]:
        """The figures by name."""
        return asdict(self)


def summarise(
    courses: Sequence[Course], needs_s: Sequence[float], device_count: int, *, restarts: int
) -> Summary | None:
    """The figures of a schedule; None for an empty one.

    Args:
        needs_s: for each job, how long it runs if it is never stopped.
    """
    if not courses:
        return None
    waits = sorted(course.wait_s for course in courses)
    slowdowns = [
        max(1.0, course.turnaround_s / max(SHORTEST_S, needed))
        for course, needed in zip(courses, needs_s, strict=True)
    ]
    makespan_s = max(course.ended_s for course in courses) - min(course.submitted_s for course in courses)
    capacity_s = makespan_s * device_count
    return Summary(
        jobs=len(courses),
        mean_wait_s=statistics.fmean(waits),
        p95_wait_s=_percentile(waits, 95),
        mean_turnaround_s=statistics.fmean(course.turnaround_s for course in courses),
        p95_slowdown=_percentile(sorted(slowdowns), 95),
        fairness=_jain(_mean_by_user(courses, slowdowns)),
        used_percent=100 * sum(course.gpu_s for course in courses) / capacity_s if capacity_s else 0.0,
        restarts=restarts,
        makespan_s=makespan_s,
    )


def _mean_by_user(courses: Sequence[Course], slowdowns: Sequence[float]) -> Mapping[str, float]:
    by_user: dict[str, list[float]] = defaultdict(list)
    for course, slowdown in zip(courses, slowdowns, strict=True):
        by_user[course.user].append(slowdown)
    return {user: statistics.fmean(values) for user, values in by_user.items()}


def _jain(slowdowns: Mapping[str, float]) -> float:
    """Fairness of the speeds, 1 / slowdown (Jain, Chiu and Hawe, "A Quantitative Measure of Fairness", 1984)."""
    speeds = [1 / slowdown for slowdown in slowdowns.values()]
    return math.fsum(speeds) ** 2 / (len(speeds) * math.fsum(speed**2 for speed in speeds))


def _percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
