"""Who is served first when jobs may be stopped for one another (scheduling, "Policy, in order")."""

from collections.abc import Iterable
from math import floor, inf, log
from typing import NamedTuple

from orchestrator.scheduler.core.estimate import remaining_s
from orchestrator.scheduler.core.lengths import expected_left
from orchestrator.scheduler.core.types import Job, OwnerUsage, Policy, QueuedJob, State

_SHORTEST_S = 60.0  # what is nearly done is not told apart by its last steps
_FRONT = 2.0  # so often overdue a job goes with the trials, which no stream of newer jobs can outrank
_SOON_S = 1.0  # no moment is waited for more exactly
_AGAIN = 2.0  # times its age that a silent job is taken to have left, where its wait is judged
_EPS = 1e-6
TRIAL, RANKED = 0, 1
_standing = tuple.__new__  # of a named tuple at half the price


class Standing(NamedTuple):
    """The place of a job: the smaller of two is served first."""

    band: int
    phase: int
    value: float
    turn: float  # when it was submitted
    id: str  # no two are equal up to here
    units: float  # devices' worth: half of a GPU is 0.5
    worth: float  # completions a second while it runs, by the best estimate; infinite in front

    @property
    def fixed(self) -> tuple[int, int]:
        """Band and phase: what no amount of work can outweigh."""
        return (self.band, self.phase)


class Ranking:
    """Ranks the jobs of a pool, running and queued alike, as they stand at ``state.now``."""

    def __init__(self, state: State, policy: Policy, *, device_bytes: int, gpu_time_weight: float) -> None:
        self._now = state.now
        self._policy = policy
        self._lengths = state.lengths
        self._device_bytes = max(1, device_bytes)
        self._weight = gpu_time_weight
        self._late_owners = _above_their_share(state.usage, policy)
        self._on_trial_s: dict[
            tuple[bool, float | None], float
        ] = {}  # how long trials are, by what decides it
        self.next_in_front = inf  # when the first of those that wait goes in front; they were ranked

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
            return _standing(Standing, (-job.priority, TRIAL, turn, job.submitted, job.id, units, inf))
        return self._by_work(job, units, late=late)

    def _by_work(self, job: Job, units: float, *, late: bool) -> Standing:
        policy, queued = self._policy, isinstance(job, QueuedJob)
        known = self._known_left_s(job, units)
        if known is None:
            left = self._feedback_left_s(job, units)
            bearable_s, lifts_each = self._bearable_s(job, _at_most_again(job, left)), policy.silent_lifts
        else:
            left, bearable_s, lifts_each = known, self._bearable_s(job, known), 1
        overdue = (self._now - job.submitted - job.ran_s) / bearable_s
        if overdue >= _FRONT:
            turn = job.submitted
            return _standing(Standing, (-job.priority, TRIAL, turn, turn, job.id, units, inf))
        if queued:
            in_front = self._now + max(_SOON_S, (_FRONT - overdue) * bearable_s)
            if in_front < self.next_in_front:
                self.next_in_front = in_front
        lifts = int(overdue * lifts_each)
        if lifts > 0:
            left /= policy.feedback_factor**lifts
        # Levels are of GPU-time, whatever the pool: a guess of time would be all guess.
        value = left * units if known is None else left * units**self._weight
        worth = 1.0 / left
        if not queued:
            value /= policy.stay_factor
            worth *= policy.stay_factor
        elif late and job.ran_s == 0:  # it decides who begins; what has begun is ranked by its work
            value *= policy.late_factor
            worth /= policy.late_factor
        return _standing(Standing, (-job.priority, RANKED, value, job.submitted, job.id, units, worth))

    def in_front_from(self, job: Job) -> float | None:
        """When a job that waits goes ahead of whoever came after it at the latest; None: never."""
        units = self.units(job.gpus, job.memory_bytes)
        known = self._known_left_s(job, units)
        if known is None:
            left = _at_most_again(job, self._feedback_left_s(job, units))
        elif remaining_s(job) is None:  # by what limits were worth, which may be learned anew meanwhile
            left = max(known, _AGAIN * job.ran_s) * (1 + self._policy.estimate_error)
        else:
            left = known
        bearable_s = self._bearable_s(job, left)
        return None if bearable_s == inf else job.submitted + job.ran_s + _FRONT * bearable_s

    def front_part(self) -> float:
        """The part of its waiting that a job which reports nothing can run ahead of whoever came after it."""
        ratio = self._policy.ageing_ratio
        return 0.0 if ratio is None else 1 / (_FRONT * ratio)

    def units(self, gpus: int, memory_bytes: int | None) -> float:
        """Devices' worth of a job that asks for so many, and so much memory on each."""
        if memory_bytes is None:
            return float(gpus)
        return gpus * max(0.01, min(1.0, memory_bytes / self._device_bytes))

    def _known_left_s(self, job: Job, units: float) -> float | None:
        """By its own reports, else by its limit and what limits were worth; None if neither says anything."""
        left = remaining_s(job)
        if left is not None:
            return left if left > _SHORTEST_S else _SHORTEST_S
        if not self._lengths.quantiles or not job.time_limit_s:
            return None
        age_s = feedback_level(job, self._policy) / max(units, 0.01)
        return max(_SHORTEST_S, job.time_limit_s * expected_left(self._lengths, age_s / job.time_limit_s))

    def _feedback_left_s(self, job: Job, units: float) -> float:
        level = feedback_level(job, self._policy)
        return max(self._policy.feedback_gpu_s, level * self._policy.feedback_factor) / max(units, 0.01)

    def _bearable_s(self, job: Job, left_s: float) -> float:
        """The wait that its length makes bearable: from then on it is lifted."""
        ratio, length_s = self._policy.ageing_ratio, job.ran_s + left_s
        return inf if ratio is None else ratio * (length_s if length_s > _SHORTEST_S else _SHORTEST_S)


def _at_most_again(job: Job, left_s: float) -> float:
    """Of a silent job that has run, what a wait is measured by: most have little left beside their age."""
    return min(left_s, _AGAIN * job.ran_s) if job.ran_s > 0 else left_s


def trial_s(job: Job, policy: Policy) -> float:
    """How long a job that never ran goes ahead of the rest; 0 where stopping it would cost too much."""
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
    """Seconds of running until a job's rank changes by itself; None where only its reports change it."""
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
    """Owners who used far more than the mean: the fair share must not reorder every job."""
    if policy.fair_share_ratio is None:
        return frozenset()
    shares = {each.owner: each.decayed_gpu_s / max(each.weight, _EPS) for each in usage}
    mean = sum(shares.values()) / len(shares) if shares else 0.0
    return frozenset(owner for owner, share in shares.items() if share > policy.fair_share_ratio * mean > 0)
