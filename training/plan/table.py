"""The table of candidates of a search, printed for people and sent to Berth as JSON.  Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from training.config.plan import Plan
from training.config.words import format_s, say_bytes, summarise


class CandidateJson(TypedDict):
    """A candidate as a job's page gets it."""

    plan: Mapping[str, Any]
    summary: str
    memory_bytes: int
    step_s: float
    measured_s: float | None
    samples_per_s: float
    fits: bool
    reason: str


class TableJson(TypedDict):
    """A table as a job's page gets it."""

    devices: int
    device: str
    usable_bytes: int
    chosen: CandidateJson | None
    why: str
    candidates: list[CandidateJson]
    fewer: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan with its predictions; ``reason`` says why it was not chosen ("" for the chosen plan)."""

    plan: Plan
    memory_bytes: float
    step_s: float
    fits: bool
    measured_s: float | None = None
    reason: str = ""

    @property
    def sample_s(self) -> float:
        """Seconds per sample, which compares plans with different batches."""
        return (self.measured_s or self.step_s) / self.plan.samples_per_step

    def to_json(self) -> CandidateJson:
        return {
            "plan": self.plan.to_json(),
            "summary": summarise(self.plan),
            "memory_bytes": round(self.memory_bytes),
            "step_s": self.step_s,
            "measured_s": self.measured_s,
            "samples_per_s": self.plan.samples_per_step / (self.measured_s or self.step_s),
            "fits": self.fits,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class PlanTable:
    """The chosen plan, the reason, and all candidates, the fastest one that fits first."""

    chosen: Candidate | None
    why: str
    candidates: Sequence[Candidate]
    devices: int
    device_name: str
    usable_bytes: float
    fewer: Mapping[int, Plan] = field(default_factory=dict)  # for fewer devices, in case one is lost

    def to_json(self) -> TableJson:
        return {
            "devices": self.devices,
            "device": self.device_name,
            "usable_bytes": round(self.usable_bytes),
            "chosen": None if self.chosen is None else self.chosen.to_json(),
            "why": self.why,
            "candidates": [each.to_json() for each in self.candidates],
            "fewer": {str(count): plan.to_json() for count, plan in self.fewer.items()},
        }

    def __str__(self) -> str:
        lines = [
            f"Plan for {self.devices} x {self.device_name}, {say_bytes(self.usable_bytes)} usable on each:"
        ]
        lines += [
            f"  {'*' if each is self.chosen else ' '} {summarise(each.plan):<58} {say_bytes(each.memory_bytes):>11}"
            f" {format_s(each.measured_s or each.step_s):>9}/step  {each.reason or 'chosen'}"
            for each in self.candidates
        ]
        return "\n".join([*lines, f"  {self.why}"])
