"""Roles and rights given and taken; each change is in the audit."""

from importlib import import_module

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, User
from django.contrib.sessions.backends.base import SessionBase
from django.contrib.sessions.models import Session
from django.db import transaction
from django.utils import timezone

from orchestrator.exceptions import Conflict
from orchestrator.models import Person, Pool, PoolRight, Right, Role
from orchestrator.people import audit


def set_role(user: User, role: Role, *, by: AbstractBaseUser, address: str = "") -> None:
    """
    Raises:
        Conflict: the last admin would be none any more.
    """
    with transaction.atomic():
        if role != Role.ADMIN:
            _keep_an_admin(user)
            Person.objects.update_or_create(user=user, defaults={"role": role})
        user.is_staff = user.is_superuser = role == Role.ADMIN
        user.save(update_fields=["is_staff", "is_superuser"])
        said = f"Made {user.get_username()} {role}."
        audit.record(by, "person.role", f"user {user.get_username()}", said, address=address)


def set_active(user: User, *, active: bool, by: AbstractBaseUser, address: str = "") -> None:
    """Shut or open an account; shutting it ends its sessions now, tokens are refused meanwhile.

    Raises:
        Conflict: the last admin would be shut out.
    """
    with transaction.atomic():
        if not active:
            _keep_an_admin(user)
        user.is_active = active
        user.save(update_fields=["is_active"])  # sessions end with it, see end_sessions
        said = f"{'Opened' if active else 'Shut'} the account of {user.get_username()}."
        audit.record(by, "person.active", f"user {user.get_username()}", said, address=address)


def _keep_an_admin(user: User) -> None:
    others = User.objects.select_for_update().filter(is_superuser=True, is_active=True).exclude(pk=user.pk)
    if user.is_superuser and not others.exists():
        raise Conflict(f"{user.get_username()} is the only admin; make another one first.")


def give_right(user: User, pool: Pool, right: Right, *, by: AbstractBaseUser, address: str = "") -> None:
    with transaction.atomic():
        PoolRight.objects.update_or_create(user=user, pool=pool, defaults={"right": right})
        said = f"{user.get_username()} may {right} pool {pool}."
        audit.record(by, "right.given", f"user {user.get_username()}", said, address=address)


def take_right(row: PoolRight, *, by: AbstractBaseUser, address: str = "") -> None:
    with transaction.atomic():
        said = f"{row.user.get_username()} may no longer {row.right} pool {row.pool_id}."
        audit.record(by, "right.taken", f"user {row.user.get_username()}", said, address=address)
        row.delete()


def end_sessions(user: User) -> int:
    """Sign a person out everywhere; returns from how many browsers."""
    store: type[SessionBase] = import_module(settings.SESSION_ENGINE).SessionStore
    ended = 0
    for session in Session.objects.filter(expire_date__gt=timezone.now()).iterator():
        if store().decode(session.session_data).get("_auth_user_id") == str(user.pk):
            session.delete()
            ended += 1
    return ended
