"""Tells live views at once that what somebody may see has changed; they would notice it by themselves seconds later.

By signals, so whatever changes an account, a session, a right or a token is seen: REST, the admin's pages, a command.
"""

from typing import Any

from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver

from orchestrator.live import wakeups
from orchestrator.models import Person, PoolRight, Token

TOPIC = "standing"  # of the messages to live views
_NO_STANDING = frozenset({"last_login"})


@receiver([post_save, post_delete], sender=User)
@receiver([post_save, post_delete], sender=Person)
@receiver([post_save, post_delete], sender=PoolRight)
@receiver([post_save, post_delete], sender=Token)
@receiver(post_delete, sender=Session)
def _tell(sender: Any, update_fields: frozenset[str] | None = None, **_: Any) -> None:
    if not update_fields or not update_fields <= _NO_STANDING:
        wakeups.publish(TOPIC)
