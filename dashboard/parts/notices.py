"""Recent events of a person's own jobs, for the bell."""

from datetime import datetime, timedelta
from typing import TypedDict

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db.models import F, Q, QuerySet
from django.http import HttpRequest

from orchestrator.facts.endings import Ended
from orchestrator.facts.events import Happened
from orchestrator.models import FINAL_STATES, Job, JobEvent, JobState
from orchestrator.people.notices.events import WATCHERS

SEEN_COOKIE = "berth_seen"
KEPT = timedelta(days=14)
MOST = 60
MOST_COUNTED = 9
SAID = {
    JobState.RUNNING: "started",
    JobState.SUCCEEDED: "finished",
    JobState.FAILED: "failed",
    JobState.TIMED_OUT: "reached its time limit",
    JobState.CANCELLED: "was cancelled",
    JobState.BACKOFF: "failed and will be retried",
    JobState.UNKNOWN: "can no longer be seen",
}


class Notice(TypedDict):
    event: JobEvent
    job: Job
    said: str
    why: str


def notices_of(user: AbstractBaseUser | AnonymousUser, now: datetime) -> list[Notice]:
    """Newest first; what the person did themselves is left out."""
    return [
        {
            "event": event,
            "job": event.job,
            "said": "look at it"
            if event.from_state == event.to_state
            else SAID.get(JobState(event.to_state), event.to_state),
            "why": "" if adds_nothing(event) else event.reason,
        }
        for event in _events(user, now - KEPT).select_related("job").order_by("-at")[:MOST]
    ]


def adds_nothing(event: JobEvent) -> bool:
    """Whether "finished" or "started" say it all."""
    first_run = (
        event.kind == Happened.RUNS and event.data.keys() == {"attempt"} and event.data["attempt"] == 1
    )
    return event.kind == Ended.FINISHED or first_run


def count_unseen(request: HttpRequest, now: datetime) -> int:
    """Count events since the list was last opened in this browser, up to ``MOST_COUNTED``."""
    try:
        since = datetime.fromtimestamp(float(request.COOKIES.get(SEEN_COOKIE, "")), tz=now.tzinfo)
    except (ValueError, OverflowError, OSError):
        since = now - timedelta(days=1)
    return _events(request.user, max(since, now - KEPT))[:MOST_COUNTED].count()


def _events(user: AbstractBaseUser | AnonymousUser, since: datetime) -> QuerySet[JobEvent]:
    news = Q(to_state__in=[*FINAL_STATES, JobState.RUNNING, JobState.BACKOFF, JobState.UNKNOWN])
    warnings = Q(from_state=F("to_state"), actor__in=WATCHERS)
    told = (news & ~Q(from_state=F("to_state"))) | warnings
    happened = JobEvent.objects.filter(told, job__owner_id=user.pk, at__gt=since)
    return happened.exclude(actor=getattr(user, "username", ""))
