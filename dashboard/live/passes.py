"""Who may open the websocket, and which topics they may read."""

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.http.request import HttpRequest, split_domain_port, validate_host
from django.utils import timezone, translation

from orchestrator.models import Job, Person, PoolRight, Right, Role, Token
from orchestrator.people import tokens

OPEN_TOPICS = frozenset({"devices", "jobs", "queue", "health"})
LONGEST_TOPIC = 120
_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_JOB_TOPIC = re.compile(rf"(job|metrics):({_UUID})")
_LOG_TOPIC = re.compile(rf"log:({_UUID}):(\d{{1,6}}):(\d{{1,5}})")


@dataclass(frozen=True, slots=True)
class Pass:
    """Who is behind a connection, and by what right."""

    user_id: int
    is_staff: bool
    session_key: str = ""
    auth_hash: str = ""  # of the session's person; a new password changes it
    token_id: int | None = None
    role: str = (
        Role.SUBMITTER
    )  # of people who are not staff; with their rights it ends this pass when it changes
    operates: frozenset[str] = frozenset()  # pools by a right of their own


@dataclass(frozen=True, slots=True)
class Target:
    """A topic, taken apart."""

    topic: str
    kind: str
    job_id: UUID | None = None
    attempt: int = 0
    rank: int = 0

    def key_for(self, holder: Pass, language: str) -> str:
        """What is shared by all readers with the same key: only ``jobs`` differs from person to person."""
        if self.kind in {"metrics", "log"}:  # without a sentence of ours
            return self.topic
        topic = self.topic
        if self.kind == "jobs":
            topic = "jobs:*" if holder.is_staff else f"jobs:{holder.user_id}"
        return f"{language} {topic}"

    @staticmethod
    def audience(key: str) -> int | None:
        """Whose jobs a key of ``jobs`` is about; None is everybody's."""
        owner = key.rpartition(":")[2]
        return None if owner == "*" else int(owner)


def parse_topic(topic: str) -> Target | None:
    """The topic's parts; None when it is not one."""
    if topic in OPEN_TOPICS:
        return Target(topic, topic)
    if hit := _JOB_TOPIC.fullmatch(topic):
        return Target(topic, hit[1], UUID(hit[2]))
    if hit := _LOG_TOPIC.fullmatch(topic):
        return Target(topic, "log", UUID(hit[1]), int(hit[2]), int(hit[3]))
    return None


def may_read(holder: Pass, target: Target) -> bool:
    """Whether the topic is there and theirs to read; the answer does not tell which of the two is missing (B63)."""
    if target.job_id is None:
        return True
    jobs = Job.objects.visible_to(_person(holder)).filter(pk=target.job_id)
    if target.kind != "log":
        return jobs.exists()
    job = jobs.filter(attempts__number=target.attempt).only("spec_fields").first()
    return job is not None and target.rank < job.log_count


def lost(holder: Pass, jobs: AbstractSet[UUID]) -> bool:
    """Whether this person no longer sees one of the jobs that they watch: its visibility or project changed."""
    return Job.objects.visible_to(_person(holder)).filter(pk__in=jobs).count() < len(jobs)


def _person(holder: Pass) -> User:
    """Enough of a user to ask for their rights."""
    return User(pk=holder.user_id, is_staff=holder.is_staff)


def identify(headers: Mapping[str, str], cookies: Mapping[str, str]) -> Pass | None:
    """The person behind a request to open a socket; None when nobody is signed in.

    A token in the header alone says who calls; a cookie beside it counts for nothing.  Tokens in the
    address are not looked at, because addresses are logged (B64).
    """
    if (header := headers.get("authorization")) is not None:
        text = tokens.in_header(header)
        token = tokens.authenticate(text) if text is not None else None
        return _pass_of(token.user, token_id=token.pk) if token else None
    key = cookies.get(settings.SESSION_COOKIE_NAME, "")
    return _of_session(key) if key else None


def language_of(headers: Mapping[str, str], cookies: Mapping[str, str]) -> str:
    """What the pages behind a connection speak, by the rules of ``ReadersLanguage``."""
    if "authorization" in headers:
        return settings.LANGUAGE_CODE
    request = HttpRequest()
    request.COOKIES = dict(cookies)
    request.META["HTTP_ACCEPT_LANGUAGE"] = headers.get("accept-language", "")
    return translation.get_language_from_request(request)


def _of_session(key: str) -> Pass | None:
    session = SessionStore(key)
    user_id = session.get("_auth_user_id")
    user = User.objects.filter(pk=user_id, is_active=True).first() if user_id else None
    if user is None or session.get("_auth_user_hash") != user.get_session_auth_hash():
        return None
    return replace(_pass_of(user), session_key=key, auth_hash=user.get_session_auth_hash())


def _pass_of(user: User, *, token_id: int | None = None) -> Pass:
    role, operates = _standings([user.pk])[user.pk]
    return Pass(user.pk, user.is_staff, token_id=token_id, role=role, operates=operates)


def _standings(user_ids: Iterable[int]) -> dict[int, tuple[str, frozenset[str]]]:
    """Role and operated pools of each of these people."""
    ids = set(user_ids)
    roles = dict(Person.objects.filter(user__in=ids).values_list("user_id", "role"))
    pools: dict[int, set[str]] = {}
    given = PoolRight.objects.filter(user__in=ids, right=Right.OPERATE).values_list("user_id", "pool_id")
    for user_id, pool_id in given:
        pools.setdefault(user_id, set()).add(pool_id)
    return {id_: (roles.get(id_, Role.SUBMITTER), frozenset(pools.get(id_, ()))) for id_ in ids}


def is_same_origin(headers: Mapping[str, str], *, secure: bool) -> bool:
    """Whether a browser's page of this very server asks; without Origin only a token will do (B62)."""
    host = headers.get("host", "")
    domain, _ = split_domain_port(host)
    if not domain or not validate_host(domain, settings.ALLOWED_HOSTS):
        return False
    origin = headers.get("origin")
    if origin is None:
        return "authorization" in headers
    parts = urlsplit(origin)
    scheme = "https" if secure or settings.ENVIRONMENT.tls else "http"
    return parts.scheme == scheme and _with_port(parts.netloc, scheme) == _with_port(host, scheme)


def _with_port(netloc: str, scheme: str) -> str:
    domain, port = split_domain_port(netloc)
    return f"{domain}:{port or ('443' if scheme == 'https' else '80')}"


def still_valid(holders: Sequence[Pass]) -> list[bool]:
    """Which of these still stand: the person active and with the same rights, the session or token alive."""
    users = User.objects.filter(is_active=True).in_bulk({one.user_id for one in holders})
    now = timezone.now()
    keys = {one.session_key for one in holders if one.session_key}
    sessions = set(
        Session.objects.filter(pk__in=keys, expire_date__gt=now).values_list("session_key", flat=True)
    )
    standings = _standings(one.user_id for one in holders)
    wanted = {one.token_id for one in holders if one.token_id is not None}
    alive: dict[int, Any] = {
        token.pk: token.expires_at for token in Token.objects.filter(pk__in=wanted, revoked_at=None)
    }
    return [
        (user := users.get(one.user_id)) is not None
        and user.is_staff == one.is_staff
        and standings[one.user_id] == (one.role, one.operates)
        and (
            one.session_key in sessions and one.auth_hash == user.get_session_auth_hash()
            if one.token_id is None
            else _alive(alive, one.token_id, now)
        )
        for one in holders
    ]


def _alive(tokens_by_id: Mapping[int, Any], token_id: int, now: Any) -> bool:
    if token_id not in tokens_by_id:
        return False
    expires_at = tokens_by_id[token_id]
    return expires_at is None or expires_at > now
