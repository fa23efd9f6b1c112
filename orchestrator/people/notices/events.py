"""Choose which events of a job notify its owner, and word the notifications."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from orchestrator.models import JobEvent, JobState, Notice, NoticeTarget, Occasion

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
    """Write notifications of events from ``since`` on; returns how many. An event notifies only once."""
    targets = _targets()
    if not targets:
        return 0
    events = JobEvent.objects.filter(at__gte=max(since, now - READ_BACK), job__owner_id__in=targets)
    notices = [
        notice
        for event in events.select_related("job", "job__owner")
        for notice in _notices(event, targets[event.job.owner_id], now)
    ]
    Notice.objects.bulk_create(notices, ignore_conflicts=True)
    return len(notices)


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
        return Occasion.WARNING if event.actor in WATCHERS else None
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
