"""How long one decision takes: ten thousand waiting jobs on 64 GPUs, one event on a server with eight, and questions to it."""

import gc
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks import asking
from benchmarks.figures import Figure, Outcome
from benchmarks.stats import spread
from orchestrator.scheduler.core import Device, Policy, QueuedJob, RunningJob, Share, State, decide

GIB = 2**30
FIGURES = (
    Figure("decide_10k_p99_ms", "ms", "10,000 jobs wait for 64 GPUs, p99", target=100),
    Figure("decide_8gpu_p99_ms", "ms", "one event on an 8-GPU server, 100 jobs wait, p99", target=2),
    Figure("decide_10k_plain_p99_ms", "ms", "the same with the plain policy"),
    Figure("decide_8gpu_plain_p99_ms", "ms", "the same with the plain policy"),
    *asking.FIGURES,
)
ROUNDS = {"10k": 120, "8gpu": 1000}


def measure() -> Outcome:
    outcome = Outcome()
    for suffix, policy in (("", Policy.progress_aware()), ("_plain", Policy())):
        for name, (nodes, waiting) in {"10k": (8, 10_000), "8gpu": (1, 100)}.items():
            took_ms = sorted(_times_ms(nodes, waiting, ROUNDS[name], policy))
            outcome.figures[f"decide_{name}{suffix}_p99_ms"] = took_ms[int(0.99 * len(took_ms))]
            outcome.details[f"decide_{name}{suffix}_ms"] = spread(took_ms, 3)
    asking.measure(outcome)
    return outcome


def _times_ms(nodes: int, waiting: int, rounds: int, policy: Policy) -> Iterator[float]:
    dice = random.Random(5)  # noqa: S311 -- a workload, not a secret
    state = _state(dice, nodes, waiting)
    decide(state, policy)
    gc.collect()
    for number in range(rounds):
        state = _after_event(state, dice, number)
        began = time.perf_counter()
        decide(state, policy)
        yield (time.perf_counter() - began) * 1000


def _state(dice: random.Random, nodes: int, waiting: int) -> State:
    """Every device is taken by jobs past their trial; those that wait have run, are new, or report nothing."""
    devices = tuple(
        Device(
            id=f"{node}-{index}",
            node=f"node-{node}",
            pool="pool",
            index=index,
            total_bytes=80 * GIB,
            numa_node=index // 4,
            nvlink=(f"{node}-{index ^ 1}",),
        )
        for node in range(nodes)
        for index in range(8)
    )
    running = tuple(
        RunningJob(
            **_facts(dice, f"running-{device.id}", 1, ran_s=dice.uniform(200, 50_000)),
            shares=(Share(device.id),),
            started=0.0,
        )
        for device in devices
    )
    queued = tuple(_queued(dice, number) for number in range(waiting))
    return State(now=1e6, devices=devices, queued=queued, running=running)


def _queued(dice: random.Random, number: int) -> QueuedJob:
    ran_s = dice.choice((0.0, dice.uniform(200, 5000)))
    return QueuedJob(**_facts(dice, f"queued-{number:06}", dice.choice((1, 1, 1, 2, 4, 8)), ran_s=ran_s))


def _facts(dice: random.Random, name: str, gpus: int, *, ran_s: float) -> dict[str, Any]:
    reports = ran_s > 0 and dice.random() < 0.7
    return {
        "id": name,
        "owner": f"user-{dice.randrange(40)}",
        "pool": "pool",
        "gpus": gpus,
        "submitted": dice.uniform(0, 1e6),
        "time_limit_s": dice.choice((None, 3600.0, 86400.0)),
        "ran_s": ran_s,
        "attained_gpu_s": ran_s * gpus,
        "progress_done": ran_s if reports else None,
        "progress_total": ran_s + dice.uniform(60, 100_000) if reports else None,
        "step_s": 1.0 if reports else None,
    }


def _after_event(state: State, dice: random.Random, number: int) -> State:
    """A job has come, and by turns one ended or took the device: the state that the next pass is given."""
    fresh = _queued(dice, 1_000_000 + number)
    held = {share.device_id for job in state.running for share in job.shares}
    free = [device.id for device in state.devices if device.id not in held]
    if free:
        facts = _facts(dice, f"running-again-{number}", 1, ran_s=dice.uniform(200, 50_000))
        running = (*state.running, RunningJob(**facts, shares=(Share(free[0]),), started=0.0))
    else:
        ended = dice.randrange(len(state.running))
        running = state.running[:ended] + state.running[ended + 1 :]
    return replace(state, queued=(*state.queued[1:], fresh), running=running)
