"""States for tests: small makers, and Hypothesis strategies for random ones."""

from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from berth.shared import words
from orchestrator.scheduler.core import (
    BackfillReservation,
    Constraints,
    Device,
    OwnerUsage,
    PoolProblem,
    QueuedJob,
    RunningJob,
    Share,
    State,
    Wait,
)
from orchestrator.sentences.waits import say_wait

GIB = 2**30
NOW = 1_000_000.0


def gpu(index: int, **facts: Any) -> Device:
    defaults = {"id": f"gpu-{index}", "node": "node-0", "pool": "default", "total_bytes": 80 * GIB}
    return Device(**{**defaults, "index": index, **facts})


def gpus(count: int, **facts: Any) -> tuple[Device, ...]:
    return tuple(gpu(index, **facts) for index in range(count))


def queued(name: str, **facts: Any) -> QueuedJob:
    return QueuedJob(**{"id": f"id-{name}", "name": name, "owner": "ada", "pool": "default", **facts})


def running(name: str, *device_ids: str, memory_bytes: int | None = None, **facts: Any) -> RunningJob:
    defaults = {"id": f"id-{name}", "name": name, "owner": "bob", "pool": "default", "started": NOW - 60}
    shares = tuple(Share(id_, memory_bytes) for id_ in device_ids)
    return RunningJob(
        **{**defaults, "gpus": len(shares), "shares": shares, "memory_bytes": memory_bytes, **facts}
    )


def state(devices: tuple[Device, ...], *jobs: QueuedJob | RunningJob, **facts: Any) -> State:
    waiting = tuple(job for job in jobs if isinstance(job, QueuedJob))
    active = tuple(job for job in jobs if isinstance(job, RunningJob))
    return State(**{"now": NOW, "devices": devices, "queued": waiting, "running": active, **facts})


def sentence_of(wait: Wait, now_s: float = NOW) -> str:
    """Why a job waits, as people read it."""
    first, last = wait.start_earliest, wait.start_latest
    when = "" if first is None or last is None else words.span(first - now_s, last - now_s)
    return say_wait(wait.code, wait.facts, now_s=now_s, ahead=wait.position - 1, when=when)


_POOLS = ("default", "other")
_OWNERS = ("ada", "bob", "eve")
_sizes_gib = st.one_of(st.none(), st.integers(1, 90))
_seconds = st.one_of(st.none(), st.integers(0, 7200).map(float))


@st.composite
def _devices(draw: st.DrawFn) -> tuple[Device, ...]:
    count = draw(st.integers(0, 10))
    return tuple(
        Device(
            id=f"gpu-{index}",
            node=f"node-{index % draw(st.integers(1, 2))}",
            pool=draw(st.sampled_from((*_POOLS[:1] * 3, _POOLS[1]))),
            index=index,
            total_bytes=draw(st.sampled_from((40, 80))) * GIB,
            foreign_bytes=draw(st.sampled_from((0, 0, 0, 10))) * GIB,
            used_bytes=draw(st.sampled_from((0, 0, 5))) * GIB,
            admin_state=draw(st.sampled_from(("enabled", "enabled", "enabled", "draining", "disabled"))),
            health=draw(st.sampled_from(("ok", "ok", "ok", "ok", "fenced", "faulty", "missing"))),
            numa_node=draw(st.one_of(st.none(), st.integers(0, 1))),
            nvlink=tuple(f"gpu-{other}" for other in draw(st.sets(st.integers(0, 9), max_size=3))),
        )
        for index in range(count)
    )


@st.composite
def _facts(draw: st.DrawFn) -> dict[str, Any]:
    size_gib = draw(_sizes_gib)
    progress = draw(st.booleans())
    return {
        "owner": draw(st.sampled_from(_OWNERS)),
        "gpus": draw(st.integers(1, 6)),
        "needs_gpu": draw(st.sampled_from((True, True, False))),
        "memory_bytes": None if size_gib is None else size_gib * GIB,
        "priority": draw(st.sampled_from((10, 50))),
        "submitted": float(draw(st.integers(0, 5))),
        "time_limit_s": draw(_seconds),
        "ran_s": float(draw(st.integers(0, 600))),
        "attained_gpu_s": float(draw(st.sampled_from((0, 100, 1000, 100_000)))),
        "preemptible": draw(st.booleans()),
        "restart_cost_s": draw(st.sampled_from((None, 5.0, 60.0, 300.0))),
        "checkpoint_age_s": draw(st.sampled_from((None, 0.0, 100.0))),
        "progress_done": 10.0 if progress else None,
        "progress_total": float(draw(st.integers(0, 1000))) if progress else None,
        "step_s": 1.0 if progress else None,
    }


@st.composite
def _running(draw: st.DrawFn, devices: tuple[Device, ...]) -> tuple[RunningJob, ...]:
    """Jobs whose shares fit: whole ones alone, shared ones within the device's memory."""
    jobs = []
    for number, device in enumerate(devices):
        use = draw(st.sampled_from(("free", "whole", "shared")))
        facts = draw(_facts()) | {"pool": device.pool, "started": NOW - 60, "stopping": draw(st.booleans())}
        size = None if use == "whole" else 15 * GIB
        for part in range({"free": 0, "whole": 1, "shared": draw(st.integers(1, 2))}[use]):
            held = draw(st.sampled_from((0, 0, 25 * GIB))) if size else 0
            mine = facts | {"gpus": 1, "memory_bytes": size, "shares": (Share(device.id, size, held),)}
            jobs.append(RunningJob(id=f"running-{number}-{part}", **mine))
    return tuple(jobs)


@st.composite
def _queued(draw: st.DrawFn, number: int) -> QueuedJob:
    return QueuedJob(
        id=f"queued-{number:02}",
        pool=draw(st.sampled_from((*_POOLS[:1] * 4, _POOLS[1], "empty"))),
        not_before=draw(st.sampled_from((None, None, NOW - 5, NOW + 5))),
        waits_for=draw(st.sampled_from(((), (), (), ("queued-00",)))),
        constraints=Constraints(avoid_devices=draw(st.sampled_from(((), (), ("gpu-0",))))),
        **draw(_facts()),
    )


@st.composite
def states(draw: st.DrawFn) -> State:
    devices = draw(_devices())
    waiting = tuple(draw(_queued(number)) for number in range(draw(st.integers(0, 12))))
    limits = st.one_of(st.none(), st.integers(0, 4))
    return State(
        now=NOW,
        devices=devices,
        queued=waiting,
        running=draw(_running(devices)),
        usage=tuple(
            OwnerUsage(owner=owner, max_devices=draw(limits), max_running=draw(limits))
            for owner in draw(st.sets(st.sampled_from(_OWNERS)))
        ),
        reservations=tuple(
            BackfillReservation(job.id, tuple(device.id for device in devices[: job.gpus]), NOW - 10)
            for job in waiting[:1]
            if draw(st.booleans())
        ),
        problems=draw(st.sampled_from(((), (), (), (PoolProblem("other", "The driver is gone."),)))),
    )


def listed_otherwise(given: State, seed: int) -> State:
    """The same state with all its parts in another order."""
    order = Random(seed)  # noqa: S311 - a test's shuffle, not a secret

    def shuffled(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(order.sample(items, len(items)))

    return replace(
        given,
        devices=shuffled(given.devices),
        queued=shuffled(given.queued),
        running=shuffled(given.running),
        usage=shuffled(given.usage),
    )


@st.composite
def crowded(draw: st.DrawFn) -> State:
    """One pool whose healthy devices are all taken, mostly by jobs that may be stopped, and a queue."""
    nodes = draw(st.integers(1, 2))
    devices = gpus(4 * nodes)
    devices = tuple(replace(device, node=f"node-{device.index // 4}") for device in devices)
    active, first = [], 0
    while first < len(devices):
        count = draw(st.integers(1, min(4, 4 - first % 4)))
        facts = draw(_facts()) | {"gpus": count, "memory_bytes": None, "pool": "default"}
        size = draw(st.sampled_from((None, None, 30 * GIB)))
        shares = tuple(Share(f"gpu-{index}", size) for index in range(first, first + count))
        facts |= {
            "memory_bytes": size,
            "shares": shares,
            "started": NOW - facts["ran_s"],
            "preemptible": draw(st.sampled_from((True, True, True, False))),
            "stopping": draw(st.sampled_from((False, False, False, True))),
        }
        active.append(RunningJob(id=f"running-{first}", **facts))
        first += count
    waiting = []
    for number in range(draw(st.integers(1, 6))):
        facts = draw(_facts()) | {"pool": "default", "gpus": draw(st.integers(1, 4))}
        facts |= {"ran_s": draw(st.sampled_from((0.0, 300.0)))}
        waiting.append(QueuedJob(id=f"queued-{number:02}", **facts))
    return State(now=NOW, devices=devices, queued=tuple(waiting), running=tuple(active))
