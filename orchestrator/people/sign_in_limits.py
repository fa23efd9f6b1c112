"""Slows the guessing of passwords down (T08).

Wrong passwords are counted for an account together with the address they come from, so that nobody can shut another out from
elsewhere, and for an address alone, so that one password cannot be tried on everybody.  Names that nobody has count alike.
An address is only what a proxy says, and a job on the proxy's machine can say as much: an account is therefore counted from
everywhere, too.  That count shuts out nobody who has signed in from where they are before.
"""

import hashlib
from datetime import datetime, timedelta

from orchestrator.models import AuditEntry, SignInFailure

WINDOW = timedelta(minutes=15)
MOST_OF_ACCOUNT = 10
MOST_OF_ADDRESS = 100
MOST_FROM_EVERYWHERE = 50
_EVERYWHERE = ""


def wait_s(account: str, address: str, now: datetime) -> float:
    """How long this account must not be tried from this address; 0: it may."""
    limits = [(_pair(account, address), MOST_OF_ACCOUNT), (_key(address), MOST_OF_ADDRESS)]
    if not _has_signed_in(account, address):
        limits.append((_pair(account, _EVERYWHERE), MOST_FROM_EVERYWHERE))
    return max(_wait_of(key, most, now) for key, most in limits)


def _has_signed_in(account: str, address: str) -> bool:
    done = AuditEntry.objects.filter(action="sign_in.done", actor__iexact=account, address=address)
    return done.exists()


def _wait_of(key: str, most: int, now: datetime) -> float:
    recent = SignInFailure.objects.filter(key=key, at__gt=now - WINDOW).order_by("-at")
    times = list(recent.values_list("at", flat=True)[:most])
    return 0.0 if len(times) < most else max(0.0, (times[-1] + WINDOW - now).total_seconds())


def note_failure(account: str, address: str, now: datetime) -> None:
    """Count a wrong password, and forget those that no longer count."""
    SignInFailure.objects.filter(at__lt=now - WINDOW).delete()
    keys = (_pair(account, address), _key(address), _pair(account, _EVERYWHERE))
    SignInFailure.objects.bulk_create(SignInFailure(key=key, at=now) for key in keys)


def forget_failures(account: str, address: str) -> None:
    """Somebody knew the password after all."""
    SignInFailure.objects.filter(key=_pair(account, address)).delete()


def _pair(account: str, address: str) -> str:
    return _key(f"{account.casefold()}\0{address}")


def _key(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
