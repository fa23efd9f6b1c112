"""Masks of secure aggregation (Bonawitz et al., 2017, section 4): whole numbers that hide an update and cancel in the sum.

Every two sites agree on a secret (Diffie-Hellman) that becomes a mask; one adds it, the other subtracts it.  Each site
adds a mask of its own beside, so that an update stays hidden even if the pairwise masks of a site that was lost are
recovered.  Numbers are whole, modulo 2^64, so masks cancel exactly.
"""

import hashlib
import secrets

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.federated.shares import SECRET_BITS

Levels = NDArray[np.uint64]
# Group 14 of RFC 3526, 2048 bits; the generator is 2.
_PRIME = int(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DD"
    "EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED"
    "EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F"
    "83655D23DCA3AD961C62F356208552BB9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3B"
    "E39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6955817183995497CEA956AE515D2261898FA0510"
    "15728E5A8AACAA68FFFFFFFFFFFFFFFF",
    16,
)
_GENERATOR = 2
LEAST_SITES = 3  # of two, each would know the other's update from the sum
SCALE = 2**24  # levels of one unit
LARGEST = 2**62  # of a sum, in levels


def new_secret() -> int:
    """A secret that nobody can guess."""
    return secrets.randbits(SECRET_BITS) | 1 << (SECRET_BITS - 1)


def digest_of(secret: int) -> str:
    """What shows that a secret is the right one, and tells nothing of it."""
    return hashlib.sha256(b"digest" + secret.to_bytes(SECRET_BITS // 8, "big")).hexdigest()


class Refused(ValueError):
    """An update that cannot be summed; the sentence says why."""


class Keys:
    """A key pair of a site for one sum.

    Args:
        secret: that of a lost site, put together from its shares; None makes a new one.
    """

    def __init__(self, secret: int | None = None) -> None:
        self.secret = new_secret() if secret is None else secret
        self.public = pow(_GENERATOR, self.secret, _PRIME)

    def shared_with(self, public: int) -> bytes:
        """The secret of two sites.

        Raises:
            Refused: the key is not of this group, so anybody could know the secret.
        """
        if not is_key(public):
            raise Refused("another site's key is not a key of this group")
        size = (_PRIME.bit_length() + 7) // 8
        return hashlib.sha256(pow(public, self.secret, _PRIME).to_bytes(size, "big")).digest()


def is_key(public: int) -> bool:
    """Whether a number can be a public key; with the others anybody could know the secret."""
    return 1 < public < _PRIME - 1


def to_levels(update: Tensor, sites: int) -> Levels:
    """An update as whole numbers modulo 2^64.

    Raises:
        Refused: it is not finite, or so large that a sum of all sites could wrap around.
    """
    values = update.detach().double().cpu().numpy()
    if not np.isfinite(values).all():
        raise Refused("its update has NaN or infinite values")
    levels = np.rint(values * SCALE)
    if np.abs(levels).max(initial=0.0) >= LARGEST / sites:
        raise Refused("its update is too large to be summed")
    whole: Levels = levels.astype(np.int64).view(np.uint64)
    return whole


def from_levels(total: Levels) -> Tensor:
    """The sum of updates from the sum of their levels."""
    return torch.from_numpy(total.view(np.int64).astype(np.float64) / SCALE)


def pair_mask(own: int, other: int, secret: bytes, label: str, count: int) -> Levels:
    """What site ``own`` adds for the site ``other``; the two sum up to zero.

    Args:
        secret: of the two sites.
        label: of the sum; a mask must never be used for two updates.
    """
    noise = _stream(secret, label, count)
    return noise if own < other else np.zeros(count, np.uint64) - noise


def own_mask(seed: int, label: str, count: int) -> Levels:
    """What a site adds for itself."""
    return _stream(seed.to_bytes(SECRET_BITS // 8, "big"), f"own, {label}", count)


def _stream(secret: bytes, label: str, count: int) -> Levels:
    """Numbers that look random to everybody without the secret."""
    data = hashlib.shake_256(secret + label.encode()).digest(8 * count)
    return np.frombuffer(data, np.uint64)
