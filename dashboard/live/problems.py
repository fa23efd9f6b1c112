"""Current problems, in sentences for the band on top of every page."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypedDict

from django.conf import settings

from berth.shared.language import text
from berth.shared.words import server_command
from dashboard.parts import wall
from orchestrator.agent import lock
from orchestrator.jobs.launch import isolation
from orchestrator.live.readings import read_now
from orchestrator.sentences.errors import said

READINGS_STOPPED_S = 5.0


@dataclass
class RedisOutage:
    """What this process's feed knows about Redis."""

    since: float | None = None  # wall clock, seconds; None while Redis answers, or nobody watches


redis_outage = RedisOutage()


class Problem(TypedDict):
    """A part of Berth that does not answer."""

    part: str
    since: float | None  # wall clock, seconds
    sentence: str


def current() -> list[Problem]:
    """Each part that does not answer."""
    found: list[Problem] = []
    readings = read_now()
    if not readings.taken_at:
        found.append(
            {
                "part": "readings",
                "since": None,
                "sentence": text(
                    "No readings yet: the agent has not reported since this server was set up. "
                    "It starts with {command}.",
                    command=server_command("up"),
                ),
            }
        )
    elif (holder := lock.silent_holder(settings.HOME)) is not None and holder.process is not None:
        stopped_at = time.time() - (holder.silent_s or 0.0)
        at = datetime.fromtimestamp(stopped_at, tz=UTC).strftime("%H:%M:%S UTC")
        found.append(
            {
                "part": "agent",
                "since": stopped_at,
                "sentence": text(
                    "The agent (pid {pid}) stopped working at {at}; jobs keep running, but none starts or ends. "
                    "{command} ends it and starts another.",
                    pid=holder.process.pid,
                    at=at,
                    command=server_command("up"),
                ),
            }
        )
    elif wall.age_s(readings) > READINGS_STOPPED_S:
        at = datetime.fromtimestamp(readings.taken_at, tz=UTC).strftime("%H:%M:%S UTC")
        found.append(
            {
                "part": "readings",
                "since": readings.taken_at,
                "sentence": text(
                    "Readings stopped at {at}; jobs keep running; the numbers shown are from then.", at=at
                ),
            }
        )
    if since := redis_outage.since:
        found.append(
            {
                "part": "redis",
                "since": since,
                "sentence": text(
                    "Redis does not answer; jobs keep running, pages update once a second "
                    "and new jobs may start a few seconds later."
                ),
            }
        )
    if sentence := isolation.problem():
        found.append({"part": "sandbox", "since": None, "sentence": said(sentence)})
    return found
