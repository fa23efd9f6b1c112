"""Deliver notifications: sent by a separate process, retried, then dropped."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from django.conf import settings
from django.utils import timezone

from orchestrator.exceptions import OrchestratorError, Sentence
from orchestrator.facts.events import NoticeFact
from orchestrator.facts.record import Fact, fact
from orchestrator.models import Notice, NoticeTarget
from orchestrator.people import secrets
from orchestrator.people.notices.post import NoticeAnswer, NoticeRequest

PROGRAM = "orchestrator.people.notices.post"
PATIENCE_S = 30.0
AGAIN_AFTER_S = (60.0, 300.0, 1800.0)  # then the notification is dropped
A_TURN = 5


def deliver_due(now: datetime) -> int:
    """Send due notifications; returns how many arrived. Slow: each may take ``PATIENCE_S``."""
    due = Notice.objects.filter(next_try_at__lte=now).select_related("target").order_by("next_try_at")
    return sum(deliver(notice) for notice in due[:A_TURN])


def deliver(notice: Notice) -> bool:
    """Send one notification now and record the result on it and its target."""
    target = notice.target
    why = _send(target, notice.title, notice.body)
    now = timezone.now()
    if why is None:
        Notice.objects.filter(pk=notice.pk).update(sent_at=now, next_try_at=None, tries=notice.tries + 1)
        NoticeTarget.objects.filter(pk=target.pk).update(last_sent_at=now, last_why={})
        return True
    more = (
        AGAIN_AFTER_S[notice.tries]
        if notice.tries < len(AGAIN_AFTER_S) and (notice.job_id or notice.sweep_id)
        else None
    )
    Notice.objects.filter(pk=notice.pk).update(
        tries=notice.tries + 1, next_try_at=None if more is None else now + timedelta(seconds=more)
    )
    NoticeTarget.objects.filter(pk=target.pk).update(last_why=why.as_json())
    return False


def _send(target: NoticeTarget, title: str, body: str) -> Fact | None:
    """Send to a target; returns why it failed, or None."""
    try:
        url = secrets.open_sealed(target.sealed)
    except secrets.SecretLost:
        return fact(NoticeFact.KEY_LOST)
    return post(url, title=title, body=body).why


class Posted(NamedTuple):
    """What came of an address."""

    shown: str  # the address without secrets; empty where it is refused
    why: Fact | None  # it is refused, or nothing arrived


def post(url: str, *, title: str | None = None, body: str = "") -> Posted:
    """Check an address, and send to it if there is a title.

    Raises:
        OrchestratorError: the sending program could not be run.
    """
    request: NoticeRequest = {
        "url": full_address(url),
        "title": title,
        "body": body,
        "allowed": list(settings.ENVIRONMENT.notify_allow),
    }
    try:
        done = subprocess.run(  # noqa: S603  # our own program; the address goes through its standard input
            [sys.executable, "-m", PROGRAM],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            cwd=settings.BASE_DIR,
            env=_environment(os.environ),
            check=True,
        )
        answer: NoticeAnswer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return Posted("", fact(NoticeFact.NO_ANSWER, within_s=PATIENCE_S))
    except (subprocess.CalledProcessError, OSError, ValueError) as error:
        raise OrchestratorError(
            Sentence("Notifications cannot be sent: {error}.", error=type(error).__name__)
        ) from error
    return Posted(answer.get("shown", ""), Fact.read(answer.get("error")) or None)


def full_address(url: str) -> str:
    """Complete ``email:ana@lab.org`` with the server's mail account; other addresses are complete."""
    person = url.removeprefix("email:")
    if person == url or not settings.ENVIRONMENT.mail_url:
        return url
    account = settings.ENVIRONMENT.mail_url
    return f"{account}{'&' if '?' in account else '?'}to={person}"


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The sender's environment: no Berth settings, and no proxy, whose address the guard would refuse."""
    return {name: variables[name] for name in ("PATH", "LANG", "SSL_CERT_FILE") if name in variables}
