"""Keys of services: ``berthsvc_...``, shown once, kept as a digest; each opens one service and nothing else."""

import hashlib
import secrets

from django.db import IntegrityError, transaction
from django.utils import timezone

from orchestrator.exceptions import Conflict, Malformed, NotFound, Sentence
from orchestrator.models import Service, ServiceKey
from orchestrator.spec.plain_text import clean_text

MARK = "berthsvc_"
MOST_KEYS = 50
NAME_LENGTH = 80


def issue(service: Service, name: str) -> str:
    """Create a key; what is returned is the only copy of it.

    Raises:
        Malformed, Conflict: no name, one that is there already, or too many keys.
    """
    name = clean_text(name).strip()
    if not 0 < len(name) <= NAME_LENGTH:
        raise Malformed(
            Sentence(
                "Give the key a name of at most {name_length} characters, such as who uses it.",
                name_length=NAME_LENGTH,
            )
        )
    if service.keys.count() >= MOST_KEYS:
        raise Conflict(
            Sentence(
                "{service} has {most_keys} keys; remove one that is no longer used.",
                service=service,
                most_keys=MOST_KEYS,
            )
        )
    key = MARK + secrets.token_urlsafe(32)
    try:
        with transaction.atomic():
            ServiceKey.objects.create(
                service=service, name=name, digest=digest(key), created_at=timezone.now()
            )
    except IntegrityError:
        raise Conflict(
            Sentence(
                "{service} has a key {name} already; remove it, or choose another name.",
                service=service,
                name=name,
            )
        ) from None
    return key


def remove(service: Service, name: str) -> None:
    """Remove a key; requests with it are refused from now on.

    Raises:
        NotFound: the service has no key of this name.
    """
    if not service.keys.filter(name=name).delete()[0]:
        raise NotFound(Sentence("{service} has no key {name!r}.", service=service, name=name[:NAME_LENGTH]))


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
