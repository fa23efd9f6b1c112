"""How far a chosen plan is from the best candidate, told so that noise cannot pass for it.

Of many candidates alike, the one with the least measured time was also lucky (the winner's curse).
So some rounds choose the rivals and others judge them, in pairs of steps that lie close together.
"""

import random
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from training.config.plan import Plan
from training.config.words import summarise

P = TypeVar("P", bound=Hashable)
StepS = Callable[[], float]
"""Seconds of one step for each sample in it."""

WARM_UP = 2
CHOOSING_ROUNDS = 8
FINAL_ROUNDS = 40
FINALISTS = 3
STEPS_IN_TURN = 3  # the first of a turn finds the caches full of another plan's data


@dataclass(frozen=True, slots=True)
class Verdict:
    to_rival: float  # the chosen plan's step over the best rival's
    rival: int  # its number; 0 is the first
    noise: float  # how far from 1 the same figure came out for a second copy of the chosen plan


@dataclass(frozen=True, slots=True)
class Regret:
    verdict: Verdict
    rival: Plan  # the best beside the chosen one
    sample_s: Mapping[Plan, float]  # medians of the rounds that chose the finalists

    def to_json(self, foretold_s: Mapping[Plan, float], chosen: Plan) -> dict[str, Any]:
        by_measured = sorted(self.sample_s.items(), key=lambda pair: pair[1])
        return {
            "regret": max(1.0, self.verdict.to_rival),
            "to_rival": self.verdict.to_rival,
            "noise": self.verdict.noise,
            "chosen": summarise(chosen),
            "rival": summarise(self.rival),
            "candidates": [
                {
                    "plan": summarise(plan),
                    "foretold_s": foretold_s.get(plan),
                    "measured_s": each_s * plan.samples_per_step,
                }
                for plan, each_s in by_measured
            ],
        }


def compare(
    steps: Mapping[Plan, StepS], chosen: Plan, make_twin: Callable[[], StepS], *, share: float = 1.0
) -> Regret:
    """Step all candidates in turns, then the quickest few beside ``chosen`` and a second copy of it.

    ``share`` of the usual rounds is for candidates whose steps take long.
    """
    times = _take_turns(steps, round(CHOOSING_ROUNDS * share))
    sample_s = {plan: statistics.median(each) for plan, each in times.items()}
    rivals = sorted((plan for plan in steps if plan != chosen), key=sample_s.__getitem__)[:FINALISTS]
    final = {"chosen": steps[chosen], "twin": make_twin()}
    final |= {str(number): steps[plan] for number, plan in enumerate(rivals)}
    of = _take_turns(final, round(FINAL_ROUNDS * share))
    verdict = judge(of["chosen"], of["twin"], [of[str(number)] for number in range(len(rivals))])
    return Regret(verdict, rivals[verdict.rival], sample_s)


def judge(chosen: Sequence[float], twin: Sequence[float], rivals: Sequence[Sequence[float]]) -> Verdict:
    """From times of the same rounds: the even ones say which rival is the best, the odd ones how good it is."""
    best = min(range(len(rivals)), key=lambda number: statistics.median(rivals[number][::2]))
    return Verdict(
        to_rival=median_ratio(chosen[1::2], rivals[best][1::2]),
        rival=best,
        noise=abs(median_ratio(chosen, twin) - 1),
    )


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Of values that were measured side by side."""
    return statistics.median(one / other for one, other in zip(above, below, strict=True))


def _take_turns(steps: Mapping[P, StepS], rounds: int) -> dict[P, list[float]]:
    """The quickest step of each turn; the order changes, so that nobody always follows the same one."""
    dice = random.Random(0)  # noqa: S311 -- an order alike on all ranks, not a secret
    times: dict[P, list[float]] = {plan: [] for plan in steps}
    order = list(steps)
    for number in range(WARM_UP + rounds):
        dice.shuffle(order)
        for plan in order:
            took_s = min(steps[plan]() for _ in range(STEPS_IN_TURN))
            if number >= WARM_UP:
                times[plan].append(took_s)
    return times
