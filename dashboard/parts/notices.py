"""Recent events of a person's own jobs and sweeps, for the bell."""

from datetime import datetime, timedelta
from typing import TypedDict

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db.models import F, Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as mark

from orchestrator.facts.endings import Ended
from orchestrator.facts.events import Happened, SweepFact
from orchestrator.facts.record import fact
from orchestrator.models import FINAL_STATES, Job, JobEvent, JobState, Sweep, SweepState
from orchestrator.people.notices.events import WATCHERS
from orchestrator.sentences import say_json

SEEN_COOKIE = "berth_seen"
KEPT = timedelta(days=14)
MOST = 60
MOST_COUNTED = 9
SAID = {
    JobState.RUNNING: mark("started"),
    JobState.SUCCEEDED: mark("finished"),
    JobState.FAILED: mark("failed"),
    JobState.TIMED_OUT: mark("reached its time limit"),
    JobState.CANCELLED: mark("was cancelled"),
    JobState.BACKOFF: mark("failed and will be retried"),
    JobState.UNKNOWN: mark("can no longer be seen"),
}
SWEEP_SAID = {
    SweepState.ENDED: mark("ended"),
    SweepState.STOPPED: mark("has stopped"),
    SweepState.FAILED: mark("has failed"),
}


class Notice(TypedDict):
    """About a job, or about a sweep, whose trials have none of their own."""

    state: str
    of_sweep: bool
    about: Job | Sweep
    said: str
    why: str
    at: datetime


def notices_of(user: AbstractBaseUser | AnonymousUser, now: datetime) -> list[Notice]:
    """Newest first; what the person did themselves is left out."""
    of_jobs: list[Notice] = [
        {
            "state": event.to_state,
            "of_sweep": False,
            "about": event.job,
            "said": _("look at it")
            if event.from_state == event.to_state
            else _(SAID.get(JobState(event.to_state), event.to_state)),
            "why": "" if adds_nothing(event) else event.reason,
            "at": event.at,
        }
        for event in _events(user, now - KEPT).select_related("job").order_by("-at")[:MOST]
    ]
    of_sweeps: list[Notice] = [
        {
            "state": sweep.state,
            "of_sweep": True,
            "about": sweep,
            "said": _(SWEEP_SAID.get(SweepState(sweep.state), sweep.state)),
            "why": say_json(sweep.why),
            "at": sweep.ended_at,
        }
        for sweep in _sweeps(user, now - KEPT).order_by("-ended_at")[:MOST]
        if sweep.ended_at is not None
    ]
    return sorted([*of_jobs, *of_sweeps], key=lambda notice: notice["at"], reverse=True)[:MOST]


def adds_nothing(event: JobEvent) -> bool:
    """Whether "finished" or "started" say it all."""
    first_run = (
        event.kind == Happened.RUNS and event.data.keys() == {"attempt"} and event.data["attempt"] == 1
    )
    return (event.kind == Ended.FINISHED and not event.data) or first_run


def count_unseen(request: HttpRequest, now: datetime) -> int:
    """Count events since the list was last opened in this browser, up to ``MOST_COUNTED``."""
    try:
        since = datetime.fromtimestamp(float(request.COOKIES.get(SEEN_COOKIE, "")), tz=now.tzinfo)
    except (ValueError, OverflowError, OSError):
        since = now - timedelta(days=1)
    since = max(since, now - KEPT)
    events = _events(request.user, since).order_by()[:MOST_COUNTED].count()
    return min(MOST_COUNTED, events + _sweeps(request.user, since)[:MOST_COUNTED].count())


def _events(user: AbstractBaseUser | AnonymousUser, since: datetime) -> QuerySet[JobEvent]:
    news = Q(to_state__in=[*FINAL_STATES, JobState.RUNNING, JobState.BACKOFF, JobState.UNKNOWN])
    warnings = Q(from_state=F("to_state")) & (Q(actor__in=WATCHERS) | Q(kind=Happened.DEVICE_DRAINED))
    told = (news & ~Q(from_state=F("to_state"))) | warnings
    recent = JobEvent.objects.filter(told, job__trial__isnull=True, at__gt=since)
    # The sum keeps the database from the index of owners: it would read every event of all the person's
    # jobs (33 ms at 80,000 events) instead of the recent ones.
    of_person = recent.alias(owner=F("job__owner_id") + 0).filter(owner=user.pk)
    return of_person.exclude(actor=getattr(user, "username", ""))


def _sweeps(user: AbstractBaseUser | AnonymousUser, since: datetime) -> QuerySet[Sweep]:
    """The person's sweeps that have ended, other than by themselves."""
    ended = Sweep.objects.filter(owner_id=user.pk, ended_at__gt=since)
    return ended.exclude(why=fact(SweepFact.STOPPED_BY, by=getattr(user, "username", "")).as_json())
