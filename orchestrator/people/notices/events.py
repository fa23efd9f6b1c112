"""Choose which events of jobs and sweeps notify their owner, and word the notifications.

A sweep has one message at its end and one at the first failure of a trial; its trials themselves have none.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from orchestrator.facts.events import Happened, SweepFact
from orchestrator.facts.record import fact
from orchestrator.models import (
    JobEvent,
    JobState,
    Notice,
    NoticeTarget,
    Occasion,
    Sweep,
    SweepState,
    SweepTrial,
)
from orchestrator.sentences import say_json

READ_BACK = timedelta(minutes=5)  # older events are no longer news after the agent was down
WATCHERS = frozenset({"agent", "idle watch", "supervisor"})  # actors whose remarks are warnings
_OF_STATE = {
    JobState.RUNNING: Occasion.STARTED,
    JobState.SUCCEEDED: Occasion.FINISHED,
    JobState.FAILED: Occasion.FAILED,
    JobState.TIMED_OUT: Occasion.FAILED,
    JobState.CANCELLED: Occasion.FAILED,
    JobState.BACKOFF: Occasion.RETRIED,
}


def collect(now: datetime, since: datetime) -> int:
    """Write notifications of events from ``since`` on; returns how many. What happened notifies only once."""
    targets = _targets()
    if not targets:
        return 0
    since = max(since, now - READ_BACK)
    events = JobEvent.objects.filter(at__gte=since, job__owner_id__in=targets, job__trial__isnull=True)
    notices = [
        notice
        for event in events.select_related("job", "job__owner")
        for notice in _notices(event, targets[event.job.owner_id], now)
    ]
    notices += _of_sweeps(targets, since, now)
    Notice.objects.bulk_create(notices, ignore_conflicts=True)
    return len(notices)


def _of_sweeps(targets: Mapping[int, Iterable[NoticeTarget]], since: datetime, now: datetime) -> list[Notice]:
    """Of each sweep its ends, by their number, and the first failure of a trial as number 0."""
    notices: list[Notice] = []
    for sweep in Sweep.objects.filter(owner_id__in=targets, ended_at__gte=since).select_related("owner"):
        if sweep.why != fact(SweepFact.STOPPED_BY, by=sweep.owner.get_username()).as_json():
            occasion = Occasion.FINISHED if sweep.state == SweepState.ENDED else Occasion.FAILED
            said = f"has {'ended' if sweep.state == SweepState.ENDED else sweep.state}"
            told = _Told(sweep, sweep.ends, said, say_json(sweep.why))
            notices += _notices_of(told, occasion, targets[sweep.owner_id], now)
    failed = SweepTrial.objects.filter(state="failed", sweep__owner_id__in=targets)
    for trial in failed.filter(ended_at__gte=since).select_related("sweep").order_by("ended_at", "pk"):
        earlier = failed.filter(sweep=trial.sweep_id, ended_at__lt=trial.ended_at)
        if not earlier.exists():
            said = f"trial {trial.number} failed, the first of the sweep"
            told = _Told(trial.sweep, 0, said, trial.error)
            notices += _notices_of(told, Occasion.FAILED, targets[trial.sweep.owner_id], now)
    return notices


class _Told(NamedTuple):
    sweep: Sweep
    number: int
    said: str
    why: str


def _notices_of(
    told: _Told, occasion: Occasion, targets: Iterable[NoticeTarget], now: datetime
) -> Iterable[Notice]:
    return [
        Notice(
            target=target,
            sweep=told.sweep,
            event_number=told.number,
            title=f"{told.sweep.name}: {told.said}"[:300],
            body=(told.why or "No details.")[:2000],
            created_at=now,
            next_try_at=now,
        )
        for target in targets
        if occasion in target.occasions
    ]


def _targets() -> dict[int, list[NoticeTarget]]:
    by_owner: dict[int, list[NoticeTarget]] = defaultdict(list)
    for target in NoticeTarget.objects.filter(user__is_active=True):
        by_owner[target.user_id].append(target)
    return by_owner


def _notices(event: JobEvent, targets: Iterable[NoticeTarget], now: datetime) -> Iterable[Notice]:
    occasion = occasion_of(event)
    if occasion is None:
        return
    for target in targets:
        if occasion in target.occasions:
            yield Notice(
                target=target,
                job=event.job,
                event_number=event.number,
                title=f"{event.job.name}: {_words(event, occasion)}"[:300],
                body=(event.reason or "No details.")[:2000],
                created_at=now,
                next_try_at=now,
            )


def occasion_of(event: JobEvent) -> Occasion | None:
    """The kind of notification that an event causes; None for none."""
    if event.from_state == event.to_state:
        told = event.actor in WATCHERS or event.kind == Happened.DEVICE_DRAINED
        return Occasion.WARNING if told else None
    if event.to_state == JobState.RUNNING and event.from_state != JobState.STARTING:
        return None  # found again after contact was lost
    if event.to_state == JobState.CANCELLED and event.actor == event.job.owner.get_username():
        return None
    if event.to_state == JobState.QUEUED and event.from_state == JobState.STOPPING:
        return Occasion.RETRIED
    return _OF_STATE.get(JobState(event.to_state))


def _words(event: JobEvent, occasion: Occasion) -> str:
    match occasion:
        case Occasion.WARNING:
            return "needs attention"
        case Occasion.STARTED:
            return "started"
        case _:
            return event.to_state.replace("_", " ")
