"""Slow down password guessing.

Wrong passwords are counted per account and address, so that nobody can lock somebody out from elsewhere, and per
address, so that one password cannot be tried on many accounts. Unknown names count like known ones. A proxy
reports the address, and a job on the proxy's machine could forge it, so each account is also counted over all
addresses. That count does not lock out people who have signed in from their address before.
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
    """Seconds until this account may be tried from this address; 0: now."""
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
    """Count a wrong password, and delete expired counts."""
    SignInFailure.objects.filter(at__lt=now - WINDOW).delete()
    keys = (_pair(account, address), _key(address), _pair(account, _EVERYWHERE))
    SignInFailure.objects.bulk_create(SignInFailure(key=key, at=now) for key in keys)


def forget_failures(account: str, address: str) -> None:
    """Reset the count of an account and address after a successful sign-in."""
    SignInFailure.objects.filter(key=_pair(account, address)).delete()


def _pair(account: str, address: str) -> str:
    return _key(f"{account.casefold()}\0{address}")


def _key(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
