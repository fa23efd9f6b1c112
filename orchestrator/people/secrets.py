"""Secrets for jobs: encrypted at rest, passed to the supervisor by pipe, never shown.

The key is the file ``secrets.key`` in BERTH_HOME. A copy of the database alone reveals nothing, and replacing
``secret_key`` (which signs sessions) loses no secret.
"""

import functools
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.utils import timezone

from orchestrator.exceptions import Malformed, OrchestratorError, Sentence
from orchestrator.models import Attempt, Job, JobSecret
from orchestrator.spec.field_types import why_not_a_variable
from orchestrator.store.files.durable import read_or_create
from orchestrator.supervisor.verdict.hiding import hider_of

LONGEST_VALUE_BYTES = 16 * 1024
MOST_SECRETS = 100


class SecretLost(OrchestratorError):
    """A stored secret cannot be decrypted: it was encrypted with another key."""

    code = "secret_lost"
    status = 422


def keep(owner: AbstractBaseUser, name: str, value: str) -> JobSecret:
    """Store a secret, or replace the one of this name.

    Raises:
        Malformed: the name is not a variable that jobs may set, or the value is empty or too long.
    """
    _check(owner, name, value)
    sealed = seal(value)
    secret, _ = JobSecret.objects.update_or_create(owner_id=owner.pk, name=name, defaults={"sealed": sealed})
    return secret


def forget(owner: AbstractBaseUser, name: str) -> None:
    """Delete a secret; does nothing if it does not exist."""
    JobSecret.objects.filter(owner_id=owner.pk, name=name).delete()


def names_of(owner: AbstractBaseUser) -> list[str]:
    """The names of a person's secrets, in order."""
    return list(JobSecret.objects.filter(owner_id=owner.pk).order_by("name").values_list("name", flat=True))


def missing(owner: AbstractBaseUser, names: Iterable[str]) -> list[str]:
    """The names for which the owner has no secret, in order."""
    wanted = list(names)
    there = set(JobSecret.objects.filter(owner_id=owner.pk, name__in=wanted).values_list("name", flat=True))
    return [name for name in wanted if name not in there]


def reveal(owner: AbstractBaseUser, names: Iterable[str]) -> dict[str, str]:
    """Decrypt values, only for a supervisor's pipe.

    Raises:
        SecretLost: a secret no longer exists, or cannot be decrypted with this key.
    """
    wanted = list(names)
    if not wanted:
        return {}
    rows = JobSecret.objects.filter(owner_id=owner.pk, name__in=wanted)
    values = {row.name: _open(row) for row in rows}
    for name in wanted:
        if name not in values:
            raise SecretLost(
                Sentence("The secret {name} no longer exists. Store it again on the account page.", name=name)
            )
    rows.update(last_used_at=timezone.now())
    return values


def quotable(job: Job, attempt: Attempt, text: str, *, is_cut: bool = False) -> str:
    """A text of the attempt's log with ``***`` for the values of the job's secrets.

    Args:
        is_cut: the text begins at any byte, so perhaps within such a value.

    Returns:
        Nothing if a secret was replaced or deleted after the attempt was made: what the run printed is unknown then.
    """
    values = _unchanged_since(job.owner_id, job.spec.secrets, attempt.created_at)
    if values is None:
        return ""
    hide = hider_of(values)
    return hide.in_cut(text) if is_cut else hide(text)


def seal(value: str) -> bytes:
    """Encrypt a text with this installation's key."""
    return _box().encrypt(value.encode())


def open_sealed(sealed: bytes | memoryview) -> str:
    """Decrypt a text.

    Raises:
        SecretLost: it was encrypted with another key.
    """
    try:
        return _box().decrypt(bytes(sealed)).decode()
    except InvalidToken:
        raise SecretLost("It was encrypted with a key other than this installation's.") from None


def _open(secret: JobSecret) -> str:
    try:
        return open_sealed(secret.sealed)
    except SecretLost:
        raise SecretLost(
            Sentence(
                "The secret {secret} cannot be decrypted: it was encrypted with another key (was secrets.key lost or not restored?). Store it again on the account page.",
                secret=secret.name,
            )
        ) from None


def _unchanged_since(owner_id: int, names: Iterable[str], at: datetime) -> list[str] | None:
    """The values of secrets that are still those of a time, to hide them in a text; None if one is not."""
    wanted = set(names)
    if not wanted:
        return []
    rows = list(JobSecret.objects.filter(owner_id=owner_id, name__in=wanted, changed_at__lte=at))
    if len(rows) < len(wanted):
        return None
    try:
        return [_open(row) for row in rows]
    except SecretLost:
        return None


def _check(owner: AbstractBaseUser, name: str, value: str) -> None:
    if problem := why_not_a_variable(name):
        raise Malformed(problem, fields={"name": [problem]})
    if not value or "\0" in value:
        sentence = "give a value that is not empty and contains no NUL character"
        raise Malformed(sentence, fields={"value": [sentence]})
    if len(value.encode(errors="replace")) > LONGEST_VALUE_BYTES:
        sentence = Sentence(
            "give at most {longest_value_bytes} KiB; put larger data into a dataset",
            longest_value_bytes=LONGEST_VALUE_BYTES // 1024,
        )
        raise Malformed(sentence, fields={"value": [sentence]})
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        sentence = "give a text that is valid Unicode"
        raise Malformed(sentence, fields={"value": [sentence]})
    others = JobSecret.objects.filter(owner_id=owner.pk).exclude(name=name)
    if others.count() >= MOST_SECRETS:
        sentence = Sentence(
            "you have {most_secrets} secrets, which is the limit; delete one first", most_secrets=MOST_SECRETS
        )
        raise Malformed(sentence, fields={"name": [sentence]})


def _box() -> Fernet:
    return _box_with(settings.HOME.secrets_key)


@functools.cache
def _box_with(key_file: Path) -> Fernet:
    return Fernet(read_or_create(key_file, lambda: Fernet.generate_key().decode()))
