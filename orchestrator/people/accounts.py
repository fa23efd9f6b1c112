"""Accounts, roles and rights: each change is in the audit, and live views hear of it."""

from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, User
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver
from django.utils import timezone

from orchestrator.exceptions import Conflict, Sentence
from orchestrator.live import wakeups
from orchestrator.models import Person, Pool, PoolRight, ProjectMember, Right, Role, Token
from orchestrator.people import audit, rights


def set_role(
    user: User, role: Role, *, by: AbstractBaseUser, address: str = "", by_group: bool = False
) -> None:
    """Give a person another role; this also ends a wait for approval.

    Args:
        by_group: the identity provider's groups gave it.

    Raises:
        Conflict: the last admin would lose the role, or the account is a program's.
    """
    with transaction.atomic():
        if role == Role.ADMIN and rights.is_service(user):
            raise Conflict(
                Sentence("{user} is a service account, which cannot be an admin.", user=user.get_username())
            )
        if role != Role.ADMIN:
            _keep_an_admin(user)
        given = {} if role == Role.ADMIN else {"role": role}
        Person.objects.update_or_create(user=user, defaults={**given, "waits": False, "by_group": by_group})
        user.is_staff = user.is_superuser = role == Role.ADMIN
        user.save(update_fields=["is_staff", "is_superuser"])
        text = f"Made {user.get_username()} {role}."
        audit.record(by, "person.role", f"user {user.get_username()}", text, address=address)


def let_wait(user: User) -> None:
    """Make a newcomer a viewer until an operator approves them.

    Raises:
        Conflict: the last admin would lose the role.
    """
    with transaction.atomic():
        _keep_an_admin(user)
        given = {"role": Role.VIEWER, "waits": True, "by_group": False}
        Person.objects.update_or_create(user=user, defaults=given)
        user.is_staff = user.is_superuser = False
        user.save(update_fields=["is_staff", "is_superuser"])
        text = f"{user.get_username()} waits for an operator's approval."
        audit.record(user, "person.waits", f"user {user.get_username()}", text)


def set_active(user: User, *, active: bool, by: AbstractBaseUser, address: str = "") -> None:
    """Enable or disable an account. Disabling ends its sessions at once; its tokens are refused while it is disabled.

    Raises:
        Conflict: the last admin would be disabled.
    """
    with transaction.atomic():
        if not active:
            _keep_an_admin(user)
        user.is_active = active
        user.save(update_fields=["is_active"])  # also ends the sessions, see end_sessions
        text = f"{'Enabled' if active else 'Disabled'} the account of {user.get_username()}."
        audit.record(by, "person.active", f"user {user.get_username()}", text, address=address)


def _keep_an_admin(user: User) -> None:
    others = User.objects.select_for_update().filter(is_superuser=True, is_active=True).exclude(pk=user.pk)
    if user.is_superuser and not others.exists():
        raise Conflict(
            Sentence("{user} is the only admin. Make somebody else an admin first.", user=user.get_username())
        )


def give_right(user: User, pool: Pool, right: Right, *, by: AbstractBaseUser, address: str = "") -> None:
    with transaction.atomic():
        PoolRight.objects.update_or_create(user=user, pool=pool, defaults={"right": right})
        text = f"{user.get_username()} may {right} pool {pool}."
        audit.record(by, "right.given", f"user {user.get_username()}", text, address=address)


def take_right(row: PoolRight, *, by: AbstractBaseUser, address: str = "") -> None:
    with transaction.atomic():
        text = f"{row.user.get_username()} may no longer {row.right} pool {row.pool_id}."
        audit.record(by, "right.taken", f"user {row.user.get_username()}", text, address=address)
        row.delete()


def end_sessions(user: User) -> int:
    """Sign a person out everywhere; returns the number of sessions ended."""
    store: type[SessionBase] = import_module(settings.SESSION_ENGINE).SessionStore
    ended = 0
    for session in Session.objects.filter(expire_date__gt=timezone.now()).iterator():
        if store().decode(session.session_data).get("_auth_user_id") == str(user.pk):
            session.delete()
            ended += 1
    return ended


TOPIC = "standing"  # of messages to live views
_NO_STANDING = frozenset({"last_login"})


@receiver([post_save, post_delete], sender=User)
@receiver([post_save, post_delete], sender=Person)
@receiver([post_save, post_delete], sender=PoolRight)
@receiver([post_save, post_delete], sender=ProjectMember)
@receiver([post_save, post_delete], sender=Token)
@receiver(post_delete, sender=Session)
def _tell(sender: Any, update_fields: frozenset[str] | None = None, **_: Any) -> None:
    if not update_fields or not update_fields <= _NO_STANDING:
        wakeups.publish(TOPIC)
