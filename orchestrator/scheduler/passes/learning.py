"""What passes learn from recent jobs, stored in one row so that no pass reads all of them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

from orchestrator.models import FINAL_STATES, Job, JobState, SchedulerNotes, StartPromise
from orchestrator.scheduler import core
from orchestrator.scheduler.core.types import NOTHING_LEARNED
from orchestrator.scheduler.passes.neighbours import forget_old, measured_pairs

LEARN_EVERY = timedelta(seconds=30)
REMEMBERED = 400  # jobs, and start estimates
COUNTED = FINAL_STATES - {JobState.CANCELLED}  # a cancelled job does not show how long it would have taken


@dataclass(frozen=True, slots=True)
class Learned:
    """The parts of a scheduling state that come from past jobs."""

    lengths: core.Lengths = NOTHING_LEARNED
    shapes: tuple[core.ShapeCount, ...] = ()
    start_errors: tuple[float, float] | None = None
    weights: core.Weights = core.FAIR_SHARE


def recall() -> Learned:
    """Read what was learned last; changes nothing."""
    notes = SchedulerNotes.objects.filter(pk=1).first()
    if notes is None:
        return Learned()
    lengths = notes.lengths or {"of_limit": False, "quantiles": []}
    errors = notes.start_errors
    return Learned(
        core.Lengths(lengths["of_limit"], tuple(lengths["quantiles"])),
        tuple(core.ShapeCount(*shape) for shape in notes.shapes),
        None if errors is None else (errors[0], errors[1]),
        core.Weights(*notes.neighbour_weights) if notes.neighbour_weights else core.FAIR_SHARE,
    )


def learn(now: datetime) -> None:
    """Learn again unless that was done recently; a clock that jumped counts as long ago."""
    notes, _ = SchedulerNotes.objects.get_or_create(pk=1)
    if notes.learned_at is not None and abs(now - notes.learned_at) < LEARN_EVERY:
        return
    SchedulerNotes.objects.filter(pk=1).update(
        lengths=asdict(core.learn_lengths(_ended())),
        shapes=[[shape.gpus, shape.memory_bytes, shape.count] for shape in _recent_shapes()],
        start_errors=core.learn_start_errors(_start_errors()),
        neighbour_weights=list(core.learn_weights(measured_pairs())),
        learned_at=now,
    )
    forget_old()


def _ended() -> Iterable[tuple[float, float | None]]:
    ended = Job.objects.filter(state__in=COUNTED, ended_at__isnull=False, seconds_run__gt=0)
    return ended.order_by("-ended_at").values_list("seconds_run", "time_limit_s")[:REMEMBERED]


def _recent_shapes() -> list[core.ShapeCount]:
    asked = Job.objects.select_related("pool").order_by("-pk")[:REMEMBERED]
    counts = Counter((job.gpus, job.claimed_bytes) for job in asked)
    return [core.ShapeCount(*shape, count) for shape, count in counts.most_common()]


def _start_errors() -> list[float]:
    checked = StartPromise.objects.kept_or_broken().filter(foreseen_s__gt=0)
    rows = checked.values_list("made_at", "started_at", "foreseen_s")[:REMEMBERED]
    return [
        max(0.0, (started - made).total_seconds()) / foreseen_s
        for made, started, foreseen_s in rows
        if started is not None and foreseen_s is not None
    ]
