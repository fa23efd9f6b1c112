"""Passwords of Berth's own: people change theirs, and choose one at sign-in when somebody else knows it."""

import secrets
from math import ceil

from django.contrib.auth.hashers import PBKDF2PasswordHasher, get_hasher
from django.contrib.auth.models import AbstractBaseUser, User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from berth.shared import words
from orchestrator.exceptions import Conflict, Malformed, Sentence, TooMany
from orchestrator.models import Person
from orchestrator.people import accounts, audit, rights, sign_in_limits

_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none that look alike: somebody types this once
_ITERATIONS = 1000


def change(user: User, *, current: str, new: str, address: str = "") -> None:
    """Replace a person's password; this ends all their sessions but the one that the caller renews.

    Raises:
        TooMany: too many wrong passwords came from this address.
        Malformed: the current password is wrong, or the new one breaks a rule; ``fields`` says which.
        Conflict: an identity provider keeps the password.
    """
    _check_own(user)
    now, name = timezone.now(), user.get_username()
    if (wait_s := sign_in_limits.wait_s(name, address, now)) > 0:
        sentence = Sentence(
            "Too many wrong passwords; try again in {duration}.", duration=words.duration(wait_s)
        )
        raise TooMany(sentence, retry_after_s=ceil(wait_s), fields={"current": [sentence]})
    if not user.check_password(current):
        sign_in_limits.note_failure(name, address, now)
        raise _wrong("current", ["This is not your current password."])
    choose(user, new, address=address)


def choose(user: User, new: str, *, address: str = "") -> None:
    """Set the password of a person who proved who they are.

    Raises:
        Malformed: it breaks a rule, or is the one they have.
    """
    try:
        validate_password(new, user)
    except ValidationError as error:
        raise _wrong("new", error.messages) from error
    if user.check_password(new):
        raise _wrong("new", ["This is the password you have. Choose another."])
    user.set_password(new)
    with transaction.atomic():
        user.save(update_fields=["password"])
        Person.objects.filter(user=user).update(must_change=False)
        text = "Changed their own password."
        audit.record(user, "person.password", f"user {user.get_username()}", text, address=address)


def reset(user: User, *, by: AbstractBaseUser, address: str = "") -> str:
    """Give a person an initial password, and end their sessions; returns its only copy.

    Raises:
        Conflict: an identity provider keeps the password, or the account is a program's.
    """
    _check_own(user)
    text = initial()
    user.password = hash_initial(text)
    with transaction.atomic():
        user.save(update_fields=["password"])
        expect_change(user)
        accounts.end_sessions(user)
        sentence = f"Gave {user.get_username()} an initial password."
        audit.record(by, "person.password", f"user {user.get_username()}", sentence, address=address)
    return text


def must_change(user: User) -> bool:
    """Whether somebody else set this person's password, so that they choose one before anything else."""
    return user.has_usable_password() and Person.objects.filter(user=user, must_change=True).exists()


def expect_change(user: User) -> None:
    """Let a person choose a password at their next sign-in: somebody else set the present one."""
    if user.has_usable_password():
        Person.objects.update_or_create(user=user, defaults={"must_change": True})


def initial() -> str:
    """A password of 99 random bits that is easy to type."""
    return "-".join("".join(secrets.choice(_LETTERS) for _ in range(5)) for _ in range(4))


def hash_initial(text: str) -> str:
    """Hash an initial password; its bits cannot be guessed, so a fast hash is enough for a list of people."""
    hasher = get_hasher()
    if isinstance(hasher, PBKDF2PasswordHasher):
        return hasher.encode(text, hasher.salt(), iterations=_ITERATIONS)
    return hasher.encode(text, hasher.salt())


def _check_own(user: User) -> None:
    if rights.is_service(user):
        raise Conflict(
            Sentence(
                "{user} is a service account: it signs in by tokens, not by a password.",
                user=user.get_username(),
            )
        )
    if not user.has_usable_password():
        raise Conflict(
            Sentence(
                "The identity provider keeps the password of {user}. Change it there.",
                user=user.get_username(),
            )
        )


def _wrong(field: str, sentences: list[str]) -> Malformed:
    return Malformed(sentences[0], fields={field: sentences})
