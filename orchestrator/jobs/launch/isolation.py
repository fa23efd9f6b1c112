"""How well jobs are isolated on this machine: the sandbox's level, its limits, and when that is too little."""

import functools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings
from django.contrib.auth import get_user_model

from orchestrator.exceptions import Unavailable
from orchestrator.spec.job_spec import JobSpec
from orchestrator.supervisor.sandbox import bwrap, landlock

WALLS = {  # parts of a sandbox, by their names in an attempt's row
    "bubblewrap": "own processes, files, /tmp and devices",
    "limits": "memory and processes held by a control group",
    "seccomp": "dangerous system calls refused",
    "landlock": "writing outside its folders refused a second time",
}
FIRST_LANDLOCK = 2  # level


@dataclass(frozen=True, slots=True)
class Strength:
    """What one level stops and does not stop, for people; docs/security.md says more."""

    name: str
    stops: str
    leaves: str


LEVELS = (
    Strength("no sandbox", "accidents", "anything hostile: a job can read and stop jobs of others"),
    Strength(
        "own processes and files",
        "reading others' files and secrets, escaping a cancel, using other GPUs by their device files; memory over its "
        "limit within about a second, and as an ordinary user processes and threads over theirs (Linux 5.14 and newer)",
        "a short rush for memory or processors, attacks on the kernel",
    ),
    Strength(
        "own processes and files, limits",
        "all that level 1 stops, fork bombs, memory taken from others, the calls that attacks on the kernel begin with",
        "attacks on the kernel and the GPU's driver",
    ),
)
FREE_DISK_FOR_OTHERS = 0.1  # share of the free disk that a job may not fill
PROCESSES_BASE = 2048  # processes and threads; torch starts one thread for each core and rank
PROCESSES_A_RANK = 2048


class NotKeptApart(Unavailable):
    """Jobs of several people would run without isolation."""

    code = "not_kept_apart"


@functools.cache
def level() -> int:
    """Detect the best level that works here (docs/security.md), once a process."""
    return bwrap.detect()


def walls() -> list[str]:
    """The parts of the sandbox here, as names of ``WALLS``."""
    best = level()
    return [
        *(["bubblewrap"] if best else []),
        *(["limits", "seccomp"] if best > 1 else []),
        *(["landlock"] if best >= FIRST_LANDLOCK and landlock.version() else []),
    ]


def describe(number: int | None, made_of: Sequence[str] = ()) -> dict[str, object] | None:
    """Describe an attempt's sandbox; None if the attempt never had one."""
    if number is None or not 0 <= number < len(LEVELS):
        return None
    strength = LEVELS[number]
    return {
        "level": number,
        "name": strength.name,
        "stops": strength.stops,
        "does_not_stop": strength.leaves,
        "walls": [{"name": name, "does": WALLS[name]} for name in made_of if name in WALLS],
    }


def check() -> None:
    """Refuse to run jobs of several people without a sandbox, unless the operator trusts all of them.

    Raises:
        NotKeptApart: with what to install or to set.
    """
    if settings.ENVIRONMENT.trust_all_users or level() > 0 or not _has_several_people():
        return
    raise NotKeptApart(
        "This server has several users and no sandbox, so one's job could read and stop another's. Install "
        "bubblewrap (bwrap), or start Berth with BERTH_TRUST_ALL_USERS=1 if everybody may do everything."
    )


def _has_several_people() -> bool:
    return get_user_model().objects.filter(is_active=True).count() > 1


def limits(spec: JobSpec, ranks: int) -> dict[str, int | None]:
    """The limits for the launch record; None: no limit."""
    given_gib = settings.ENVIRONMENT.job_disk_gib
    free_bytes = shutil.disk_usage(settings.HOME.root).free
    return {
        "memory_bytes": spec.memory_bytes,
        "open_files": None,
        "cpus": spec.cpus,
        "pids": PROCESSES_BASE + PROCESSES_A_RANK * ranks,
        "disk_bytes": given_gib * 1024**3
        if given_gib is not None
        else round(free_bytes * (1 - FREE_DISK_FOR_OTHERS)),
    }
