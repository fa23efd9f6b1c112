"""What a sweep knows when it decides: its trials, and what they reported at rungs, in the order of the reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator.sweeps.core.space import Settings, Space


class TrialState(StrEnum):
    RUNNING = "running"  # its job waits for devices or trains
    PAUSED = "paused"  # it waits at a rung and may be resumed
    ENDED = "ended"  # trained to the end
    STOPPED = "stopped"  # a loser at a rung, or stopped with its sweep
    FAILED = "failed"  # by itself; a result as well


@dataclass(frozen=True, slots=True)
class Trial:
    """One point of the space.

    ``target`` is the rung that it trains to, None where it trains to the end; a fault of the machine ended a ``lost`` one.
    """

    number: int
    settings: Settings
    state: TrialState = TrialState.RUNNING
    target: int | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """The value of a trial at a rung; lower is better, infinite for a trial that failed or diverged.

    ``further`` has the values of the other metrics of a sweep that has several.
    """

    trial: int
    rung: int
    value: float
    further: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """All trials by number, and all reports, oldest first: the whole state of the search."""

    trials: Mapping[int, Trial] = field(default_factory=dict)
    reports: tuple[Report, ...] = ()

    def at_rung(self, rung: int) -> dict[int, float]:
        """The values at one rung by trial."""
        return {report.trial: report.value for report in self.reports if report.rung == rung}

    def best(self) -> Report | None:
        """The best finite report; the earliest of equal ones."""
        finite = [report for report in self.reports if report.value < float("inf")]
        return min(finite, key=lambda report: report.value, default=None)


@dataclass(frozen=True, slots=True)
class Search:
    """What a sampler needs to know beside the history.

    ``rungs`` is empty until the length of a trial is known; ``earlier`` is what other sweeps of this space found.
    """

    space: Space
    seed: int
    sampler: str = "auto"
    rungs: tuple[int, ...] = ()
    metrics: int = 1
    earlier: History = field(default_factory=History)
