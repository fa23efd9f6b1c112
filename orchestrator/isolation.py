"""How well jobs are kept apart on this machine: the sandbox's level, the limits, and when that is too little."""

import functools
import shutil

from django.conf import settings
from django.contrib.auth import get_user_model

from orchestrator.exceptions import Unavailable
from orchestrator.spec import JobSpec
from orchestrator.supervisor import sandbox

NAMES = {
    0: "none: a session of its own",
    1: "own processes, files, /tmp and devices (bubblewrap)",
    2: "level 1, limits by control group, system-call filter",
}
FREE_DISK_FOR_OTHERS = 0.1  # of what is free at the launch: a job may not fill the disk for all
PROCESSES_BASE = 2048  # processes and threads together; torch starts one thread a core and rank
PROCESSES_A_RANK = 2048


class NotKeptApart(Unavailable):
    """Jobs of several people would run with nothing between them."""

    code = "not_kept_apart"


@functools.cache
def level() -> int:
    """The best level that works here (see docs/security.md); tried once a process."""
    return sandbox.detect()


def check() -> None:
    """Refuse to run jobs of several people without a sandbox, unless the operator trusts all of them.

    Raises:
        NotKeptApart: with what to install or say.
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
    """The limits for the launch record; None leaves one open."""
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
