"""How well jobs are isolated on this machine: the sandbox's level, its limits, and when that is too little."""

import os
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from django.conf import settings
from django.contrib.auth import get_user_model

from berth.shared.language import text
from orchestrator.exceptions import Sentence, Unavailable
from orchestrator.jobs.launch import refusals
from orchestrator.jobs.launch.refusals import Refusal
from orchestrator.live.readings import SandboxEntry, read_now
from orchestrator.models import Device
from orchestrator.spec.job_spec import JobSpec
from orchestrator.supervisor.sandbox import bwrap, landlock
from orchestrator.supervisor.sandbox.bwrap import Probe

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
PROBE_AGAIN_AFTER_S = 30.0  # where there was no sandbox: an administrator may have cured it by now
FREE_DISK_FOR_OTHERS = 0.1  # share of the free disk that a job may not fill
PROCESSES_BASE = 2048  # processes and threads; torch starts one thread for each core and rank
PROCESSES_A_RANK = 2048


class NotKeptApart(Unavailable):
    """Jobs of several people would run without isolation."""

    code = "not_kept_apart"


@dataclass(frozen=True, slots=True)
class _Result:
    probe: Probe
    refusal: Refusal | None
    at_s: float  # monotonic

    @property
    def holds(self) -> bool:
        return self.refusal is None or time.monotonic() - self.at_s <= PROBE_AGAIN_AFTER_S


class _Prober:
    """What this process knows of the sandbox; looked at again only where there was none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._result: _Result | None = None

    def result(self) -> _Result:
        with self._lock:
            if self._result is None or not self._result.holds:
                probe = bwrap.probe()
                reason = None if probe.level else refusals.find(probe)
                self._result = _Result(probe, reason, time.monotonic())
            return self._result

    def forget(self) -> None:
        with self._lock:
            self._result = None


_prober = _Prober()
forget = _prober.forget


def level() -> int:
    """The best level that works here (docs/security.md)."""
    return _prober.result().probe.level


def refusal() -> Refusal | None:
    """Why there is no sandbox here; None if there is one."""
    return _prober.result().refusal


def missing_for_level_2() -> str:
    """What keeps level 1 from being level 2; empty at other levels."""
    probe = _prober.result().probe
    return probe.error if probe.level == 1 else ""


def walls(*, in_image: bool = False) -> list[str]:
    """The parts of the sandbox here, as names of ``WALLS``; Landlock is applied by a Python that an image need not have."""
    best = level()
    return [
        *(["bubblewrap"] if best else []),
        *(["limits", "seccomp"] if best > 1 else []),
        *(["landlock"] if best >= FIRST_LANDLOCK and not in_image and landlock.version() else []),
    ]


class Description(TypedDict):
    """A sandbox in words, as REST gives it."""

    level: int
    name: str
    stops: str
    does_not_stop: str
    walls: list[dict[str, str]]  # name, and what it does


def describe(number: int | None, made_of: Sequence[str] = ()) -> Description | None:
    """Describe an attempt's sandbox; None if the attempt never had one."""
    if number is None or not 0 <= number < len(LEVELS):
        return None
    strength = LEVELS[number]
    return {
        "level": number,
        "name": text(strength.name),
        "stops": text(strength.stops),
        "does_not_stop": text(strength.leaves),
        "walls": [{"name": name, "does": text(WALLS[name])} for name in made_of if name in WALLS],
    }


def reading() -> SandboxEntry:
    """What the agent reports of the sandbox here, for processes that run elsewhere."""
    reason = refusal()
    if reason is None:
        return {"level": level(), "refusal": None}
    return {"level": level(), "refusal": reason.sentence, "refusal_words": reason.sentence.as_json()}


def check() -> None:
    """Refuse to run jobs of several people here without a sandbox, unless the operator trusts all of them.

    Raises:
        NotKeptApart: with what refuses the sandbox, and what to do.
    """
    reason = refusal()
    if reason is not None and _needs_sandbox():
        raise NotKeptApart(_sentence(reason.sentence))


def check_where_jobs_run() -> None:
    """Refuse a submit that ``check`` would refuse at the launch.

    Raises:
        NotKeptApart: with what refuses the sandbox, and what to do.
    """
    if sentence := problem():
        raise NotKeptApart(sentence)


def problem() -> Sentence | None:
    """Why jobs of several people do not run on this server; None if they do.

    The agent says so: a container that serves pages has walls of its own.
    """
    reported = read_now().sandbox or reading()
    if reported["refusal"] is None or not _needs_sandbox():
        return None
    parts = reported.get("refusal_words")
    return _sentence(Sentence.read(parts) if parts else reported["refusal"])


def _sentence(refusal: str) -> Sentence:
    return Sentence(
        "This server has several users and no sandbox, so one's job could read and stop another's. "
        "{refusal} Or start Berth with BERTH_TRUST_ALL_USERS=1 if everybody may do everything.",
        refusal=refusal,
    )


def _needs_sandbox() -> bool:
    return not settings.ENVIRONMENT.trust_all_users and _has_several_people()


def _has_several_people() -> bool:
    return get_user_model().objects.filter(is_active=True).count() > 1


def threads(spec: JobSpec, devices: Sequence[Device]) -> int:
    """How many threads each rank computes with: the cores that the job asked for, else its device's share of all.

    More threads than cores wait for each other in a loop: two jobs that each take every core of a server
    need several times the processor time of two jobs with half of them.
    """
    if spec.cpus is not None:
        return max(1, spec.cpus // len(devices))
    of_kind = Device.objects.filter(kind=devices[0].kind, node=devices[0].node).count()
    return max(1, (os.cpu_count() or 1) // max(of_kind, len(devices)))


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
