"""Secrets in shares (Shamir, 1979), and sealed so that only one other site can read them."""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping

PRIME = 2**521 - 1  # larger than any secret here
SECRET_BITS = 256
_SHARE_BYTES = 66
_TAG_BYTES = 32


class NotReadable(ValueError):
    """A sealed share that was not sealed with this key, or was changed."""


def split(secret: int, numbers: Iterable[int], threshold: int) -> dict[int, int]:
    """Split a secret into shares by site, of which ``threshold`` give it back and fewer tell nothing."""
    coefficients = [secret, *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {number: _value(coefficients, number + 1) for number in numbers}


def _value(coefficients: list[int], point: int) -> int:
    total = 0
    for coefficient in reversed(coefficients):
        total = (total * point + coefficient) % PRIME
    return total


def join(shares: Mapping[int, int]) -> int:
    """The secret of enough shares (Lagrange's polynomial at zero); fewer give another number."""
    total = 0
    for number, share in shares.items():
        above, below = 1, 1
        for other in shares:
            if other != number:
                above = above * (other + 1) % PRIME
                below = below * (other - number) % PRIME
        total = (total + share * above * pow(below, -1, PRIME)) % PRIME
    return total


def seal(key: bytes, label: str, values: tuple[int, int]) -> str:
    """Encrypt two shares for the site with the same key; a key and a label are used once."""
    plain = b"".join(value.to_bytes(_SHARE_BYTES, "big") for value in values)
    hidden = bytes(a ^ b for a, b in zip(plain, _stream(key, label, len(plain)), strict=True))
    return (hidden + _tag(key, label, hidden)).hex()


def unseal(key: bytes, label: str, sealed: str) -> tuple[int, int]:
    """Decrypt two shares.

    Raises:
        NotReadable: they were not sealed with this key and label.
    """
    try:
        raw = bytes.fromhex(sealed)
    except (ValueError, TypeError) as error:
        raise NotReadable("a share is no text of digits") from error
    hidden, tag = raw[:-_TAG_BYTES], raw[-_TAG_BYTES:]
    if len(hidden) != 2 * _SHARE_BYTES or not hmac.compare_digest(tag, _tag(key, label, hidden)):
        raise NotReadable("a share was changed on its way")
    plain = bytes(a ^ b for a, b in zip(hidden, _stream(key, label, len(hidden)), strict=True))
    first, second = plain[:_SHARE_BYTES], plain[_SHARE_BYTES:]
    return int.from_bytes(first, "big"), int.from_bytes(second, "big")


def _stream(key: bytes, label: str, count: int) -> bytes:
    return hashlib.shake_256(b"hide" + key + label.encode()).digest(count)


def _tag(key: bytes, label: str, hidden: bytes) -> bytes:
    return hmac.digest(hashlib.sha256(b"tag" + key).digest(), label.encode() + hidden, "sha256")
