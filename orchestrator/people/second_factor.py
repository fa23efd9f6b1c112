"""The second factor of a sign-in: codes of an app, passkeys, and codes for the day when both are lost.

django-allauth keeps and checks them (``allauth.mfa``). When they are asked for is Berth's own (``sign_in_steps``).
Its checks of passkeys read the request, so their functions are called within one.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret, validate_totp_code
from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, User
from django.core.exceptions import ValidationError
from django.db import transaction

from orchestrator.exceptions import Conflict, Forbidden, Malformed, NotFound, Sentence
from orchestrator.people import accounts, audit, rights, secrets
from orchestrator.spec.plain_text import clean_text

APP, PASSKEY, RECOVERY = (
    Authenticator.Type.TOTP,
    Authenticator.Type.WEBAUTHN,
    Authenticator.Type.RECOVERY_CODES,
)
MOST_PASSKEYS = 20
NAME_LENGTH = 60
USED_CODE_LASTS_S = 120.0  # longer than any code of an app is right
_WRONG = "This code is wrong or was used. Give the one that the app shows now."


class Adapter(DefaultMFAAdapter):  # type: ignore[misc]  # the library has no types
    """Named in the settings: encrypts the library's secrets as it does jobs' secrets."""

    def encrypt(self, text: str) -> str:
        return secrets.seal(text).decode()

    def decrypt(self, encrypted_text: str) -> str:
        return secrets.open_sealed(encrypted_text.encode())

    def _get_user_identifier(self, user: AbstractBaseUser) -> str:
        return user.get_username()


def has(user: AbstractBaseUser) -> bool:
    """Whether a person gives a second factor at sign-in."""
    return bool(Authenticator.objects.filter(user_id=user.pk).exclude(type=RECOVERY).exists())


def must_have(user: User) -> bool:
    """Whether ``BERTH_SECOND_FACTOR`` asks this person for one; an identity provider asks its own people."""
    asked: str = settings.ENVIRONMENT.second_factor
    return asked == "everybody" or (asked == "staff" and rights.hosts(user))


def passkeys(user: AbstractBaseUser) -> list[Authenticator]:
    return list(Authenticator.objects.filter(user_id=user.pk, type=PASSKEY).order_by("created_at"))


def app_of(user: AbstractBaseUser) -> Authenticator | None:
    found: Authenticator | None = Authenticator.objects.filter(user_id=user.pk, type=APP).first()
    return found


def new_secret() -> str:
    """A secret for an app, which ``add_app`` keeps once the app shows a right code."""
    return str(generate_totp_secret())


def picture_of(user: AbstractBaseUser, secret: str) -> tuple[str, str]:
    """The address that an app reads, and its QR code as SVG."""
    adapter = Adapter()
    address = adapter.build_totp_url(user, secret)
    return address, adapter.build_totp_svg(address)


def add_app(user: User, secret: str, code: str, *, address: str = "") -> None:
    """Keep an app whose code is right.

    Raises:
        Conflict: the person has an app.
        Malformed: the code is wrong.
    """
    if app_of(user) is not None:
        raise Conflict("You have an app. Remove it before you add another.")
    if not secret or not validate_totp_code(secret, _digits(code)):
        raise Malformed(_WRONG, fields={"code": [_WRONG]})
    with transaction.atomic():
        TOTP.activate(user, secret)
        _added(user, "an app", address)


def options_for_passkey(user: User) -> dict[str, Any]:
    """What the browser needs to make a passkey; call it within a request."""
    from allauth.mfa.webauthn.internal import auth  # late import: loads fido2

    return dict(auth.begin_registration(user, passwordless=False))


def add_passkey(user: User, name: str, credential: str, *, address: str = "") -> None:
    """Keep a passkey that the browser made.

    Raises:
        Malformed: the name or the passkey is wrong.
        Conflict: the person has too many.
    """
    from allauth.mfa.webauthn.internal import auth  # late import: loads fido2

    name = _clean_name(name)
    if len(passkeys(user)) >= MOST_PASSKEYS:
        raise Conflict(
            Sentence("You have {most_passkeys} passkeys. Remove one first.", most_passkeys=MOST_PASSKEYS)
        )
    made = _read(credential)
    try:
        auth.complete_registration(made)
    except (ValidationError, ValueError, TypeError, KeyError) as error:
        sentence = "The browser's passkey does not fit this page. Reload the page and try again."
        raise Malformed(sentence, fields={"passkey": [sentence]}) from error
    with transaction.atomic():
        auth.WebAuthn.add(user, name, made)
        _added(user, f"the passkey {name}", address)


def options_to_prove(user: User) -> dict[str, Any]:
    """What the browser needs to use a passkey of this person; call it within a request."""
    from allauth.mfa.webauthn.internal import auth  # late import: loads fido2

    return dict(auth.begin_authentication(user))


def prove_by_passkey(user: User, credential: str) -> bool:
    """Whether the browser used a passkey of this person."""
    from allauth.mfa.webauthn.internal import auth  # late import: loads fido2

    try:
        authenticator = auth.complete_authentication(
            user, auth.parse_authentication_response(_read(credential))
        )
    except (Malformed, ValidationError, ValueError, TypeError, KeyError):
        return False
    authenticator.record_usage()
    return True


def prove_by_code(user: User, code: str) -> bool:
    """Whether this is a code of the person's app or one of their recovery codes, which is then used up."""
    digits = _digits(code)
    with transaction.atomic():
        rows = Authenticator.objects.select_for_update().filter(user_id=user.pk, type__in=(APP, RECOVERY))
        return any(_proves(row, digits) for row in rows.order_by("-type"))


def _proves(row: Authenticator, digits: str) -> bool:
    """Whether a code fits. Codes used lately stand in the row: each process has a cache of its own."""
    if row.type == RECOVERY:
        proved = bool(RecoveryCodes(row).validate_code(digits))
    else:
        now, used = time.time(), dict(row.data.get("used", {}))
        used = {code: at for code, at in used.items() if now - at < USED_CODE_LASTS_S}
        digest = hashlib.sha256(digits.encode()).hexdigest()
        if digest in used or not validate_totp_code(secrets.open_sealed(row.data["secret"].encode()), digits):
            return False
        row.data["used"] = {**used, digest: now}
        row.save(update_fields=["data"])
        proved = True
    if proved:
        row.record_usage()
    return proved


def recovery_codes(user: User) -> list[str]:
    """The recovery codes that are left."""
    row = Authenticator.objects.filter(user_id=user.pk, type=RECOVERY).first()
    return [] if row is None else list(RecoveryCodes(row).get_unused_codes())


def renew_recovery_codes(user: User, *, address: str = "") -> list[str]:
    """Replace the recovery codes.

    Raises:
        Conflict: there is no second factor that they could stand in for.
    """
    if not has(user):
        raise Conflict("Add an app or a passkey first.")
    with transaction.atomic():
        Authenticator.objects.filter(user_id=user.pk, type=RECOVERY).delete()
        codes = list(RecoveryCodes.activate(user).get_unused_codes())
        subject = f"user {user.get_username()}"
        audit.record(user, "second_factor.codes", subject, "Made new recovery codes.", address=address)
    return codes


def remove(user: User, factor_id: int, *, address: str = "") -> None:
    """Remove one of the person's own.

    Raises:
        NotFound: the person has no such factor.
        Forbidden: it is the last one, and this server asks them for one.
    """
    row = Authenticator.objects.filter(user_id=user.pk, pk=factor_id).exclude(type=RECOVERY).first()
    if row is None:
        raise NotFound("You have no such second factor.")
    others = Authenticator.objects.filter(user_id=user.pk).exclude(pk=row.pk).exclude(type=RECOVERY)
    if must_have(user) and not others.exists():
        raise Forbidden("This server asks you for a second factor. Add another before you remove this one.")
    with transaction.atomic():
        row.delete()
        if not others.exists():
            Authenticator.objects.filter(user_id=user.pk).delete()
        what = "the app" if row.type == APP else f"the passkey {row.data.get('name', '')}"
        audit.record(
            user, "second_factor.removed", f"user {user.get_username()}", f"Removed {what}.", address=address
        )


def reset(user: User, *, by: AbstractBaseUser, address: str = "") -> None:
    """Remove every second factor of somebody who lost theirs, and sign them out everywhere."""
    with transaction.atomic():
        Authenticator.objects.filter(user_id=user.pk).delete()
        accounts.end_sessions(user)
        name = user.get_username()
        text = f"Removed every second factor of {name}."
        audit.record(by, "second_factor.reset", f"user {name}", text, address=address)


def _added(user: User, what: str, address: str) -> None:
    RecoveryCodes.activate(user)
    subject = f"user {user.get_username()}"
    audit.record(user, "second_factor.added", subject, f"Added {what}.", address=address)


def _read(credential: str) -> dict[str, Any]:
    try:
        made = json.loads(credential)
    except ValueError:
        made = None
    if not isinstance(made, Mapping):
        sentence = "The browser gave no passkey. Try again, or use another browser."
        raise Malformed(sentence, fields={"passkey": [sentence]})
    return dict(made)


def _digits(code: str) -> str:
    return "".join(letter for letter in code[:40] if letter.isascii() and letter.isdigit())


def _clean_name(name: str) -> str:
    try:
        name = clean_text(name)
    except ValueError as error:
        raise Malformed(Sentence("The name {error}.", error=error), fields={"name": [str(error)]}) from error
    if not 1 <= len(name) <= NAME_LENGTH:
        sentence = Sentence(
            "Give the passkey a name of 1 to {name_length} characters, for example the device that has it.",
            name_length=NAME_LENGTH,
        )
        raise Malformed(sentence, fields={"name": [sentence]})
    return name
