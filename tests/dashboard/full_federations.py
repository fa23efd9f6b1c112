"""Federations for the full lab: one that trains, with sites here and at other Berths in each state, and two that ended."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from orchestrator.facts.events import FederationFact
from orchestrator.facts.record import FactRecord, fact
from orchestrator.models import (
    Federation,
    FederationInvitation,
    FederationMember,
    Job,
    JobState,
    Pool,
)
from orchestrator.store.layout import Home

LONG = "hospital-of-saint-mary-in-the-north-west-of-the-county-"
OPTIONS: dict[str, Any] = {"proximal": 0.01, "delta": 1e-5, "clip": 1.0, "noise": 0.5}
LOST = [
    {"site": 1, "round": 2, "why": "its update has NaN or infinite values"},
    {"site": 4, "round": 3, "why": "its job was cancelled"},
    {"site": 5, "round": 0, "why": "its invitation was revoked"},
]


def fill_federations(home: Home, me: User, pool: Pool, jobs: list[Job]) -> None:
    """Make one federation that trains and two that have ended.

    Args:
        jobs: the server of the one that trains, and its three sites here.
    """
    now = timezone.now()
    _ended(me, pool, now, "stopped", fact(FederationFact.STOPPED_BY, by="root").as_json())
    error = "out of memory " * 20
    _ended(me, pool, now, "failed", fact(FederationFact.SERVER_ENDED, state="failed", error=error).as_json())
    running = _federation(me, pool, now, f"clinics of the north {LONG * 2}"[:180], sites=10, remote=7)
    for number, job in zip((None, 0, 1, 2), jobs, strict=True):
        FederationMember.objects.create(federation=running, number=number, job=job)
    _invite(running, 3, "clinic-b", now, joined_at=now, seen_at=now)
    _invite(running, 4, LONG[:63], now, joined_at=now, seen_at=now - timedelta(hours=2))
    _invite(running, 5, "revoked", now, joined_at=now, revoked_at=now)
    _invite(running, 6, "never-came", now, revoked_at=now)
    _invite(running, 7, "not-there-yet", now)
    _invite(running, 8, "too-late", now, expires_at=now - timedelta(days=1))
    metrics = {"accuracy": 0.91, "loss": 0.21, "a_metric_with_a_long_name_of_its_own": 12345.678}
    rounds = [
        {"round": number, "sites": 5, "seconds": 12.5, "metrics": metrics, "epsilon": 0.4 * number}
        for number in range(1, 31)
    ]
    output = home.job(jobs[0].pk).output
    output.mkdir(parents=True)
    report = {"v": 1, "rounds": rounds, "lost": LOST, "epsilon": 12.0}
    (output / "federated.json").write_text(json.dumps(report))


def site_jobs(make: Callable[..., Job], me: User) -> list[Job]:
    """A server and three sites here, one of which has failed."""
    states = (JobState.HELD, JobState.HELD, JobState.FAILED, JobState.HELD)
    names = ("server", "site 0", f"site 1 {LONG}", "site 2")
    return [make(me, name=f"clinics {name}", state=state) for name, state in zip(names, states, strict=True)]


def _federation(
    me: User, pool: Pool, now: datetime, name: str, *, sites: int, remote: int, **fields: Any
) -> Federation:
    return Federation.objects.create(
        name=name,
        owner=me,
        pool=pool,
        sites=sites,
        rounds=40,
        options={**OPTIONS, "remote_sites": remote},
        created_at=now,
        **fields,
    )


def _ended(me: User, pool: Pool, now: datetime, state: str, why: FactRecord) -> None:
    report = {
        "v": 1,
        "rounds": [{"round": 1, "sites": 3, "seconds": 0.5, "metrics": {}, "epsilon": None}],
        "lost": [],
    }
    _federation(
        me,
        pool,
        now,
        state,
        sites=3,
        remote=1,
        state=state,
        why=why,
        report=report,
        ended_at=now,
        cleared=True,
    )


def _invite(federation: Federation, number: int, name: str, now: datetime, **fields: Any) -> None:
    FederationInvitation.objects.create(
        federation=federation,
        number=number,
        name=name,
        digest=f"{number:064x}",
        invited_by=federation.owner,
        **{"created_at": now, "expires_at": now + timedelta(days=7), **fields},
    )
