"""Which jobs are served first, and which hold devices, when jobs may be stopped for one another."""

from collections.abc import Collection, Iterable
from math import floor, inf, log
from typing import NamedTuple

from orchestrator.scheduler.core.ends import remaining_s
from orchestrator.scheduler.core.learning import expected_left
from orchestrator.scheduler.core.speed import new_tuple
from orchestrator.scheduler.core.types import (
    Job,
    OwnerUsage,
    Policy,
    QueuedJob,
    State,
)

_SHORTEST_S = 60.0  # jobs with less than this remaining rank alike
_FRONT = (
    2.0  # once this many times overdue, a job ranks with the trials, so no stream of newer jobs passes it
)
_SOON_S = 1.0  # the precision of a wake-up
_SILENT_REMAINING = (
    2.0  # a silent job's assumed remaining time when its wait is judged, in multiples of its age
)
_EPS = 1e-6
_UNIT_EPS = 1e-9  # of sums of devices
TRIAL, RANKED = 0, 1


class Standing(NamedTuple):
    """The place of a job: the smaller of two is served first."""

    band: int
    phase: int
    value: float
    turn: float  # when the job was submitted
    tie: str  # the id of the job whose turn it has: its own, or another of its owner's
    id: str  # no two standings are equal up to here
    units: float  # devices held: half of a GPU is 0.5
    worth: float  # expected completions per second of running; infinite in front

    @property
    def fixed(self) -> tuple[int, int]:
        """Band and phase, which no amount of work outweighs."""
        return (self.band, self.phase)


class Ranking:
    """Ranks the queued and running jobs of a pool as of ``state.now``."""

    def __init__(self, state: State, policy: Policy, *, device_bytes: int, gpu_time_weight: float) -> None:
        self._now = state.now
        self._policy = policy
        self._lengths = state.lengths
        self._device_bytes = max(1, device_bytes)
        self._weight = gpu_time_weight
        self._late_owners = _above_their_share(state.usage, policy)
        self._on_trial_s: dict[tuple[bool, float | None], float] = {}
        self.next_in_front = inf  # when the first of the ranked waiting jobs goes in front

    def of(self, job: Job) -> Standing:
        memory_bytes = job.memory_bytes
        units = float(job.gpus) if memory_bytes is None else self.units(job.gpus, memory_bytes)
        late = job.owner in self._late_owners
        kind = (job.preemptible, job.restart_cost_s)
        on_trial_s = self._on_trial_s.get(kind)
        if on_trial_s is None:
            on_trial_s = self._on_trial_s[kind] = trial_s(job, self._policy) - _EPS
        if job.ran_s < on_trial_s:
            turn = job.submitted + self._policy.late_trial_s if late else job.submitted
            return new_tuple(
                Standing, (-job.priority, TRIAL, turn, job.submitted, job.id, job.id, units, inf)
            )
        return self._by_work(job, units, late=late)

    def _by_work(self, job: Job, units: float, *, late: bool) -> Standing:
        policy, queued = self._policy, isinstance(job, QueuedJob)
        known_s = self._known_remaining_s(job, units)
        if known_s is None:
            remaining = self._feedback_remaining_s(job, units)
            bearable_s = self._bearable_s(job, _cap_by_age(job, remaining))
            lifts_each = policy.silent_lifts
        else:
            remaining, bearable_s, lifts_each = known_s, self._bearable_s(job, known_s), 1
        overdue = (self._now - job.submitted - job.ran_s) / bearable_s
        if overdue >= _FRONT:
            turn = job.submitted
            return new_tuple(Standing, (-job.priority, TRIAL, turn, turn, job.id, job.id, units, inf))
        if queued:
            in_front = self._now + max(_SOON_S, (_FRONT - overdue) * bearable_s)
            if in_front < self.next_in_front:
                self.next_in_front = in_front
        lifts = int(overdue * lifts_each)
        if lifts > 0:
            remaining /= policy.feedback_factor**lifts
        # Feedback levels are GPU-time in every pool: converting them to time would only add a guess.
        value = remaining * units if known_s is None else remaining * units**self._weight
        worth = 1.0 / remaining
        if not queued:
            value /= policy.stay_factor
            worth *= policy.stay_factor
        elif late and job.ran_s == 0:  # fair share decides which jobs begin; jobs that ran rank by their work
            value *= policy.late_factor
            worth /= policy.late_factor
        return new_tuple(
            Standing, (-job.priority, RANKED, value, job.submitted, job.id, job.id, units, worth)
        )

    def in_front_from(self, job: Job) -> float | None:
        """The latest moment from which a waiting job goes ahead of all later jobs; None: never."""
        units = self.units(job.gpus, job.memory_bytes)
        known_s = self._known_remaining_s(job, units)
        if known_s is None:
            remaining = _cap_by_age(job, self._feedback_remaining_s(job, units))
        elif remaining_s(job) is None:  # from learned run times, which later passes may learn differently
            remaining = max(known_s, _SILENT_REMAINING * job.ran_s) * (1 + self._policy.estimate_error)
        else:
            remaining = known_s
        bearable_s = self._bearable_s(job, remaining)
        return None if bearable_s == inf else job.submitted + job.ran_s + _FRONT * bearable_s

    def front_part(self) -> float:
        """The share of its waiting time that a silent job can run ahead of all later jobs."""
        ratio = self._policy.ageing_ratio
        return 0.0 if ratio is None else 1 / (_FRONT * ratio)

    def units(self, gpus: int, memory_bytes: int | None) -> float:
        """Devices that a job counts for, given its device count and the memory it claims on each."""
        if memory_bytes is None:
            return float(gpus)
        return gpus * max(0.01, min(1.0, memory_bytes / self._device_bytes))

    def _known_remaining_s(self, job: Job, units: float) -> float | None:
        """By the job's own reports, else by its time limit and learned run times; None without either."""
        remaining = remaining_s(job)
        if remaining is not None:
            return remaining if remaining > _SHORTEST_S else _SHORTEST_S
        if not self._lengths.quantiles or not job.time_limit_s:
            return None
        age_s = feedback_level(job, self._policy) / max(units, 0.01)
        return max(_SHORTEST_S, job.time_limit_s * expected_left(self._lengths, age_s / job.time_limit_s))

    def _feedback_remaining_s(self, job: Job, units: float) -> float:
        level = feedback_level(job, self._policy)
        return max(self._policy.feedback_gpu_s, level * self._policy.feedback_factor) / max(units, 0.01)

    def _bearable_s(self, job: Job, remaining: float) -> float:
        """The wait that is bearable for a job of this length; a longer wait lifts its rank."""
        ratio, length_s = self._policy.ageing_ratio, job.ran_s + remaining
        return inf if ratio is None else ratio * (length_s if length_s > _SHORTEST_S else _SHORTEST_S)


def _cap_by_age(job: Job, remaining: float) -> float:
    """Cap the remaining time of a silent job that has run: most have little left compared with their age."""
    return min(remaining, _SILENT_REMAINING * job.ran_s) if job.ran_s > 0 else remaining


def trial_s(job: Job, policy: Policy) -> float:
    """How long a job that never ran goes ahead of the rest; 0 if stopping it would cost too much."""
    cost = restart_cost_s(job, policy)
    if not job.preemptible or cost > policy.longest_trial_restart_s:
        return 0.0
    return min(policy.trial_s, max(policy.trial_s / 3, policy.trial_restarts * cost))


def restart_cost_s(job: Job, policy: Policy) -> float:
    return policy.restart_cost_s if job.restart_cost_s is None else job.restart_cost_s


def feedback_level(job: Job, policy: Policy) -> float:
    """The attained GPU-seconds at which the job's level begins (Tiresias, NSDI'19): 0, 900, 3600, ..."""
    attained = job.attained_gpu_s + _EPS
    if attained < policy.feedback_gpu_s:
        return 0.0
    steps = floor(log(attained / policy.feedback_gpu_s, policy.feedback_factor) + _EPS)
    return policy.feedback_gpu_s * policy.feedback_factor**steps


def next_change_s(job: Job, policy: Policy) -> float | None:
    """Seconds of running until a job's rank changes by itself; None if only its reports change it."""
    trial = trial_s(job, policy)
    if job.ran_s < trial - _EPS:
        return trial - job.ran_s
    if remaining_s(job) is not None:
        return None
    level = feedback_level(job, policy)
    bound = max(policy.feedback_gpu_s, level * policy.feedback_factor)
    rate = job.attained_gpu_s / job.ran_s if job.ran_s > 0 else float(job.gpus)
    return max(1.0, (bound - job.attained_gpu_s) / max(rate, 0.01))


def _above_their_share(usage: Iterable[OwnerUsage], policy: Policy) -> frozenset[str]:
    """Owners who used far more than the mean; the others are not reordered by the fair share."""
    if policy.fair_share_ratio is None:
        return frozenset()
    shares = {owner.owner: owner.decayed_gpu_s / max(owner.weight, _EPS) for owner in usage}
    mean = sum(shares.values()) / len(shares) if shares else 0.0
    return frozenset(owner for owner, share in shares.items() if share > policy.fair_share_ratio * mean > 0)


def choose(ordered: Iterable[Standing], units: float, swaps: int, sizes: Collection[float]) -> set[str]:
    """Choose the jobs that should hold the devices now, by the work done per device.

    A greedy knapsack and its repair: fill ``units`` devices in the given order, then let a job that is too
    large for the rest replace the least urgent ones if it ends sooner than they do together.

    Args:
        sizes: all sizes among ``ordered``; reading stops once none of them can still matter.
    """
    smallest, most = min(sizes, default=0.0), min(swaps, len(sizes))
    inside: list[Standing] = []
    outside: dict[float, Standing] = {}  # the first of each size
    for candidate in ordered:
        need = candidate.units
        if need <= units + _UNIT_EPS:
            units -= need
            inside.append(candidate)
        elif len(outside) < swaps and need not in outside:
            outside[need] = candidate
        elif len(outside) >= most and smallest > units + _UNIT_EPS:
            break
    for candidate in outside.values():
        units = _swap_in(candidate, inside, units)
    return {candidate.id for candidate in inside}


def _swap_in(entering: Standing, inside: list[Standing], units: float) -> float:
    """Let a job replace chosen ones if that is worth it; returns the remaining units."""
    need, gain = entering.units, entering.worth
    leaving: list[Standing] = []
    loss, free = 0.0, units
    for candidate in reversed(inside):
        if free >= need - _UNIT_EPS:
            break
        worth = candidate.worth if candidate.fixed == entering.fixed else inf
        if loss + worth < gain:
            leaving.append(candidate)
            loss += worth
            free += candidate.units
    if free < need - _UNIT_EPS:
        return units
    for candidate in sorted(leaving, key=lambda one: (-one.worth, one.id)):
        if free - candidate.units >= need - _UNIT_EPS:
            leaving.remove(candidate)
            free -= candidate.units
    gone = {candidate.id for candidate in leaving}
    inside[:] = [candidate for candidate in inside if candidate.id not in gone]
    inside.append(entering)
    return free - need
