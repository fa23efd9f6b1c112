"""Idempotency keys: a repeated request gets the first answer again, and makes no second job."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from django.contrib.auth.models import AbstractBaseUser
from django.db.models import QuerySet
from django.utils import timezone

from orchestrator.exceptions import Impossible
from orchestrator.models import IdempotencyKey

KEPT_FOR = timedelta(hours=24)
Answer: TypeAlias = Mapping[str, Any]  # the body of a 201


@dataclass(frozen=True, slots=True)
class Request:
    """A person's request under the key they gave it; another endpoint is another request."""

    user: AbstractBaseUser
    endpoint: str
    key: str

    def is_known(self) -> bool:
        return self._kept().filter(created_at__gte=timezone.now() - KEPT_FOR).exists()

    def answer(self, fingerprint: str) -> Answer | None:
        """The answer to the first request with this key; None where this is the first.

        Raises:
            Impossible: the key was used for a request with another fingerprint.
        """
        kept = self._kept().first()
        if kept is None:
            return None
        if kept.created_at < timezone.now() - KEPT_FOR:
            kept.delete()
            return None
        if kept.fingerprint != fingerprint:
            raise Impossible(
                "This Idempotency-Key was used for another body; use a new key for a new job.",
                fields={"Idempotency-Key": ["was used for another body"]},
            )
        answer: Answer = kept.answer
        return answer

    def keep(self, fingerprint: str, answer: Answer, at: datetime) -> None:
        IdempotencyKey.objects.create(
            user_id=self.user.pk,
            endpoint=self.endpoint,
            key=self.key,
            fingerprint=fingerprint,
            status=201,
            answer=answer,
            created_at=at,
        )

    def _kept(self) -> QuerySet[IdempotencyKey]:
        return IdempotencyKey.objects.filter(user_id=self.user.pk, endpoint=self.endpoint, key=self.key)


def forget_old(now: datetime) -> None:
    IdempotencyKey.objects.filter(created_at__lt=now - KEPT_FOR).delete()
