"""What the search considered, for people and for Berth.  No torch here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from training.plan.types import Plan

_GIB = 2**30
_NAMED = 8
_CHECKPOINTING = {"none": "ckpt off", "selective": "ckpt selective", "full": "ckpt on"}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One plan with what was predicted for it; ``reason`` says why it was not taken, "" for the chosen."""

    plan: Plan
    memory_bytes: float
    step_s: float
    fits: bool
    measured_s: float | None = None
    reason: str = ""

    @property
    def sample_s(self) -> float:
        """Seconds of a step for each sample in it: what plans with different batches compare by."""
        return (self.measured_s or self.step_s) / self.plan.samples_per_step

    def to_json(self) -> dict[str, Any]:
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
    """The chosen plan, why, and all candidates, the quickest that fits first."""

    chosen: Candidate | None
    why: str
    candidates: Sequence[Candidate]
    devices: int
    device_name: str
    usable_bytes: float
    fewer: Mapping[int, Plan] = field(default_factory=dict)  # for fewer devices, should one be lost

    def to_json(self) -> dict[str, Any]:
        return {
            "devices": self.devices,
            "device": self.device_name,
            "usable_bytes": round(self.usable_bytes),
            "chosen": self.chosen and self.chosen.to_json(),
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


def summarise(plan: Plan) -> str:
    """As "FSDP, bf16, ckpt on, batch 16x4"."""
    parts = [plan.strategy.upper(), plan.precision, _CHECKPOINTING[plan.activation_checkpointing]]
    if plan.cpu_offload != "none":
        parts.append(f"{plan.cpu_offload} on the host")
    if plan.pp > 1 or plan.tp > 1:
        parts.append(f"dp {plan.dp} pp {plan.pp} tp {plan.tp}")
    return ", ".join([*parts, f"batch {plan.batch_size}x{plan.gradient_accumulation_steps}"])


def format_s(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def say_names(names: Sequence[str]) -> str:
    """At most eight, then how many more."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def say_bytes(size: float) -> str:
    for unit, name in ((_GIB, "GiB"), (2**20, "MiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 1024:.1f} KiB"
