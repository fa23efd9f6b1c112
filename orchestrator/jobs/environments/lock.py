"""The lock of an environment: lines of a requirements file, each with one version."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from orchestrator.jobs.environments.base import Base, split_local

_HASH = re.compile(r"\s*\\?\s*--hash[=\s](\S+)")


@dataclass(frozen=True, slots=True)
class Locked:
    """One package of a lock."""

    name: str
    version: str  # or the address that it comes from
    line: str


def read_lock(text: str) -> list[Locked]:
    """The packages of a lock that this machine needs, by name; options and local folders are passed over."""
    packages: dict[str, Locked] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        line = re.sub(r"(^|\s)#.*$", "", line).strip()
        if not line or line.startswith(("-", ".", "/")):
            continue
        try:
            wanted = Requirement(_HASH.sub("", line).strip())
        except InvalidRequirement:
            continue
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        hashes = " ".join(f"--hash={digest}" for digest in _HASH.findall(line))
        name = canonicalize_name(wanted.name)
        version = wanted.url or next(
            (one.version for one in wanted.specifier if one.operator in {"==", "==="}), ""
        )
        place = f"{name} @ {wanted.url}" if wanted.url else f"{name}=={version}"
        packages[name] = Locked(name, version, f"{place} {hashes}".strip())
    return [packages[name] for name in sorted(packages)]


def sits_on(packages: Iterable[Locked], base: Base) -> bool:
    """Whether the server's torch is the one of the lock, or the lock has none."""
    if base.torch is None:
        return False
    torch = next((each for each in packages if each.name == "torch"), None)
    return torch is None or _is_same(torch.version, base.torch)


def beyond(packages: Iterable[Locked], base: Base) -> list[Locked]:
    """What has to be installed on top of the base."""
    there = base.versions
    return [
        each for each in packages if each.name not in there or not _is_same(each.version, there[each.name])
    ]


def _is_same(wanted: str, there: str) -> bool:
    """A version that names no build is any build of it."""
    return wanted == there or wanted == split_local(there)
