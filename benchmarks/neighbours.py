"""Neighbours on one device: how well slowdowns are predicted, and what keeping bad pairs apart is worth.

Six kinds of work run alone and in all pairs, pinned to one core, which stands for a device.
"""

import itertools
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure, Outcome
from orchestrator.scheduler import core

FIGURES = (
    Figure(
        "slowdown_error_percent", "%", "error of predicted slowdowns of pairs that were left out, mean", 15
    ),
    Figure("slowdown_error_worst_percent", "%", "the same, the worst pair"),
    Figure(
        "makespan_ratio", "", "40 jobs on four devices: last end with neighbours known over without", 0.85
    ),
    Figure("mean_completion_ratio", "", "the same of the mean time from arrival to end"),
    Figure("slowest_step_ratio", "", "the same of the worst slowdown that a job saw on average"),
)
GIB = 2**30
WINDOW_S = 0.8
ROUNDS = 2
DEVICES = 4
JOBS = 40
SEEDS = 10
RESTART_S = 30.0
POLICY = core.Policy.progress_aware()


def _matrix(rng: np.random.Generator) -> Callable[[], None]:
    one = rng.standard_normal((128, 128))
    return lambda: _none(one @ one)


def _memory(rng: np.random.Generator) -> Callable[[], None]:
    one = rng.standard_normal(4_000_000)
    return lambda: _none(one + 1.0)


def _cache(rng: np.random.Generator) -> Callable[[], None]:
    one, order = rng.standard_normal(200_000), rng.permutation(200_000)
    return lambda: _none(one[order])


def _waiting(work_s: float, wait_s: float) -> Callable[[np.random.Generator], Callable[[], None]]:
    """A training that waits for its data between its steps."""

    def make(rng: np.random.Generator) -> Callable[[], None]:
        one = rng.standard_normal((128, 128))

        def step() -> None:
            until = time.thread_time() + work_s
            while time.thread_time() < until:
                _none(one @ one)
            time.sleep(wait_s)

        return step

    return make


def _none(value: object) -> None:
    """Use a result, and forget it."""


WORKS: Mapping[str, Callable[[np.random.Generator], Callable[[], None]]] = {
    "matrix": _matrix,
    "memory": _memory,
    "cache": _cache,
    "half": _waiting(0.010, 0.010),
    "quarter": _waiting(0.005, 0.015),
    "idle": _waiting(0.001, 0.020),
}


def _run(name: str, steps: "Synchronized[int]", cpu_s: "Synchronized[float]", stop: Event) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    step = WORKS[name](np.random.default_rng(0))
    while not stop.is_set():
        step()
        steps.value += 1
        cpu_s.value = time.process_time()


def _together(names: Sequence[str]) -> list[tuple[float, float]]:
    """Steps/s and use of the core, of works that run at once."""
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    counts = [(context.Value("l", 0), context.Value("d", 0.0)) for _ in names]
    ranks = [
        context.Process(target=_run, args=(name, *count, stop))
        for name, count in zip(names, counts, strict=True)
    ]
    for rank in ranks:
        rank.start()
    while not all(steps.value for steps, _ in counts):
        time.sleep(0.01)
    began = time.monotonic(), [(steps.value, cpu_s.value) for steps, cpu_s in counts]
    time.sleep(WINDOW_S)
    ended = time.monotonic(), [(steps.value, cpu_s.value) for steps, cpu_s in counts]
    stop.set()
    for rank in ranks:
        rank.join()
    lasted_s = ended[0] - began[0]
    return [
        ((after[0] - before[0]) / lasted_s, (after[1] - before[1]) / lasted_s)
        for before, after in zip(began[1], ended[1], strict=True)
    ]


@dataclass(slots=True)
class Measured:
    """What the works did alone and in pairs."""

    uses: dict[str, float] = field(default_factory=dict)
    slowdowns: dict[tuple[str, str], float] = field(default_factory=dict)

    def sample(self, work: str, other: str) -> core.PairSample:
        return core.PairSample(self.uses[work], self.uses[other], self.slowdowns[work, other])


def measure() -> Outcome:
    outcome = Outcome()
    measured = _measure_pairs()
    _judge_predictions(measured, outcome)
    _judge_schedules(measured, outcome)
    outcome.details["uses"] = measured.uses
    outcome.details["slowdowns"] = {
        f"{work} beside {other}": s for (work, other), s in measured.slowdowns.items()
    }
    return outcome


@contextmanager
def _first_in_line() -> Iterator[None]:
    """Give this session's processes the processor first: what else runs here must not count as a neighbour."""
    group = Path("/proc/self/autogroup")
    if os.geteuid() != 0 or not group.exists():
        yield
        return
    group.write_text("-20")
    try:
        yield
    finally:
        group.write_text("0")


def _measure_pairs() -> Measured:
    with _first_in_line():
        return _measure_in_turns()


def _measure_in_turns() -> Measured:
    measured = Measured()
    pairs = list(itertools.combinations_with_replacement(WORKS, 2))
    alone: dict[str, list[tuple[float, float]]] = {name: [] for name in WORKS}
    beside: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):  # in turns: what disturbs one disturbs all
        for name in WORKS:
            alone[name] += _together([name])
        for one, other in pairs:
            (first, _), (second, _) = _together([one, other])
            beside.setdefault((one, other), []).append(first)
            beside.setdefault((other, one), []).append(second)
    rates = {name: statistics.median(rate for rate, _ in seen) for name, seen in alone.items()}
    measured.uses = {
        name: min(1.0, statistics.median(use for _, use in seen)) for name, seen in alone.items()
    }
    measured.slowdowns = {
        pair: max(1.0, rates[pair[0]] / statistics.median(seen)) for pair, seen in beside.items()
    }
    return measured


def _judge_predictions(measured: Measured, outcome: Outcome) -> None:
    """Predict each pair from the others."""
    errors = {}
    for left_out in {frozenset(pair) for pair in measured.slowdowns}:
        seen = [measured.sample(*pair) for pair in measured.slowdowns if frozenset(pair) != left_out]
        known = core.Neighbours(
            uses={("", work): use for work, use in measured.uses.items()}, weights=core.learn_weights(seen)
        )
        for pair, slowdown in measured.slowdowns.items():
            if frozenset(pair) == left_out:
                predicted = known.slowdown("", pair[0], [pair[1]]) or 1.0
                errors[f"{pair[0]} beside {pair[1]}"] = 100 * abs(predicted / slowdown - 1)
    outcome.figures["slowdown_error_percent"] = statistics.mean(errors.values())
    outcome.figures["slowdown_error_worst_percent"] = max(errors.values())
    outcome.details["errors_percent"] = errors


@dataclass(slots=True)
class Training:
    """A job of the played day; ``left_s`` is of its time alone."""

    id: str
    work: str
    memory_bytes: int
    submitted: float
    left_s: float
    length_s: float
    device: str | None = None
    started: float = 0.0
    ended: float | None = None


def _judge_schedules(measured: Measured, outcome: Outcome) -> None:
    ratios, means, worst = [], [], []
    for seed in range(SEEDS):
        with_, without = (_play(_day(seed), measured, limits) for limits in ({"default": 1.3}, {}))
        ratios.append(max(_ends(with_)) / max(_ends(without)))
        means.append(_mean_completion_s(with_) / _mean_completion_s(without))
        worst.append(_worst_stretch(with_) / _worst_stretch(without))
    outcome.figures["makespan_ratio"] = statistics.mean(ratios)
    outcome.figures["mean_completion_ratio"] = statistics.mean(means)
    outcome.figures["slowest_step_ratio"] = statistics.mean(worst)
    outcome.details["makespan_ratios"] = ratios


def _ends(jobs: Sequence[Training]) -> Iterator[float]:
    return (job.ended for job in jobs if job.ended is not None)


def _mean_completion_s(jobs: Sequence[Training]) -> float:
    return statistics.mean((job.ended or 0.0) - job.submitted for job in jobs)


def _worst_stretch(jobs: Sequence[Training]) -> float:
    return max(((job.ended or 0.0) - job.started) / job.length_s for job in jobs)


def _day(seed: int) -> list[Training]:
    """Jobs that arrive over some hours: kinds of work repeat, lengths and claims vary."""
    rng = random.Random(seed)  # noqa: S311  # a played day, not a secret
    at, jobs = 0.0, []
    for number in range(JOBS):
        at += rng.expovariate(1 / 180)
        length_s = min(3600.0, rng.lognormvariate(6.5, 0.8))
        size = rng.choice([6, 10, 16, 24]) * GIB
        jobs.append(Training(f"job-{number:02}", rng.choice(list(WORKS)), size, at, length_s, length_s))
    return jobs


def _play(jobs: list[Training], measured: Measured, limits: Mapping[str, float]) -> list[Training]:
    """Play the day through ``decide``; what a pair costs is known once it ran, how a work runs alone once it did."""
    now, seen = 0.0, Measured()
    devices = tuple(
        core.Device(id=f"gpu-{n}", node="n", pool="default", total_bytes=80 * GIB, index=n)
        for n in range(DEVICES)
    )
    while any(job.ended is None for job in jobs):
        decisions = core.decide(_state(now, devices, jobs, seen, limits), POLICY, tell=False)
        by_id = {job.id: job for job in jobs}
        for start in decisions.start:
            by_id[start.job_id].device, by_id[start.job_id].started = start.devices[0].device_id, now
        stopped = {one.job_id for one in decisions.apart} | {one.job_id for one in decisions.preempt}
        for id_ in stopped:
            by_id[id_].device = None  # the next pass starts it where it then belongs
            by_id[id_].left_s += RESTART_S
        if stopped:
            continue
        now = _advance(now, jobs, measured, seen)
    return jobs


def _advance(now: float, jobs: Sequence[Training], measured: Measured, seen: Measured) -> float:
    """Let everything run until a job ends, one arrives or a minute has passed; a pair that runs is known exactly, at once."""
    held: dict[str, list[Training]] = {}
    for job in jobs:
        if job.device is not None and job.ended is None:
            held.setdefault(job.device, []).append(job)
    pace = {}
    for tenants in held.values():
        for job in tenants:
            others = [other.work for other in tenants if other is not job]
            pace[job.id] = _truth(measured).slowdown("", job.work, others) or 1.0
            if not others:
                seen.uses[job.work] = measured.uses[job.work]
            elif len(others) == 1:
                seen.slowdowns[job.work, others[0]] = measured.slowdowns[job.work, others[0]]
    running = [job for tenants in held.values() for job in tenants]
    moments = [now + job.left_s * pace[job.id] for job in running]
    moments += [job.submitted for job in jobs if job.submitted > now]
    later = min([*moments, now + 60.0 if running else float("inf")])
    for job in running:
        job.left_s -= (later - now) / pace[job.id]
        if job.left_s <= 1e-3:
            job.ended, job.device = later, None
    return later


def _truth(measured: Measured) -> core.Neighbours:
    return core.Neighbours(
        uses={("", work): use for work, use in measured.uses.items()},
        pairs={("", *pair): core.PairSeen(slowdown, 10**6) for pair, slowdown in measured.slowdowns.items()},
    )


def _state(
    now: float,
    devices: tuple[core.Device, ...],
    jobs: Sequence[Training],
    seen: Measured,
    limits: Mapping[str, float],
) -> core.State:
    samples = [seen.sample(*pair) for pair in seen.slowdowns if {*pair} <= seen.uses.keys()]
    known = replace(_truth(seen), limits=limits, weights=core.learn_weights(samples))
    queued = [
        core.QueuedJob(**_facts(job), ran_s=job.length_s - job.left_s)
        for job in jobs
        if job.ended is None and job.device is None and job.submitted <= now
    ]
    running = [
        core.RunningJob(
            **_facts(job),
            shares=(core.Share(job.device, job.memory_bytes),),
            started=job.started,
            ran_s=now - job.started,
            checkpoint_age_s=30.0,
        )
        for job in jobs
        if job.ended is None and job.device is not None
    ]
    return core.State(
        now=now, devices=devices, queued=tuple(queued), running=tuple(running), neighbours=known
    )


def _facts(job: Training) -> dict[str, Any]:
    return {
        "id": job.id,
        "owner": "ada",
        "pool": "default",
        "memory_bytes": job.memory_bytes,
        "submitted": job.submitted,
        "work": job.work,
        "restart_cost_s": RESTART_S,
        "progress_done": job.length_s - job.left_s,
        "progress_total": job.length_s,
        "step_s": 1.0,
    }
