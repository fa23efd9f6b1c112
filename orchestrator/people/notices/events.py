"""Which things in a job's history people are told, and in which words."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from orchestrator.models import JobEvent, JobState, Notice, NoticeTarget, Occasion

READ_BACK = timedelta(minutes=5)  # what a stopped agent missed longer ago is no news
WATCHERS = frozenset({"agent", "idle watch", "supervisor"})  # whose remarks are warnings
_OF_STATE = {
    JobState.RUNNING: Occasion.STARTED,
    JobState.SUCCEEDED: Occasion.FINISHED,
    JobState.FAILED: Occasion.FAILED,
    JobState.TIMED_OUT: Occasion.FAILED,
    JobState.CANCELLED: Occasion.FAILED,
    JobState.BACKOFF: Occasion.RETRIED,
}


def collect(now: datetime, since: datetime) -> int:
    """Write notices about what happened from ``since`` on; how many. The same event is told once, however often read."""
    targets = _targets()
    if not targets:
        return 0
    events = JobEvent.objects.filter(at__gte=max(since, now - READ_BACK), job__owner_id__in=targets)
    found = [
        notice
        for event in events.select_related("job", "job__owner")
        for notice in _notices(event, targets[event.job.owner_id], now)
    ]
    Notice.objects.bulk_create(found, ignore_conflicts=True)
    return len(found)


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
                body=(event.reason or "Nothing more is known.")[:2000],
                created_at=now,
                next_try_at=now,
            )


def occasion_of(event: JobEvent) -> Occasion | None:
    """What kind of news an event is to the job's owner; None where it is none."""
    if event.from_state == event.to_state:
        return Occasion.WARNING if event.actor in WATCHERS else None
    if event.to_state == JobState.RUNNING and event.from_state != JobState.STARTING:
        return None  # seen again after it was out of sight
    if event.to_state == JobState.CANCELLED and event.actor == event.job.owner.get_username():
        return None
    if event.to_state == JobState.QUEUED and event.from_state == JobState.STOPPING:
        return Occasion.RETRIED
    return _OF_STATE.get(JobState(event.to_state))


def _words(event: JobEvent, occasion: Occasion) -> str:
    match occasion:
        case Occasion.WARNING:
            return "look at it"
        case Occasion.STARTED:
            return "started"
        case _:
            return event.to_state.replace("_", " ")
