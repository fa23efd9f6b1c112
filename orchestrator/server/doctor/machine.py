"""The machine under the jobs: whether it starts their sandbox, and whether torch fits its driver."""

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence

from django.conf import settings

from berth.shared.words import server_command
from orchestrator.devices import torch_builds
from orchestrator.exceptions import Unavailable
from orchestrator.jobs.launch import isolation
from orchestrator.jobs.launch.refusals import Cure
from orchestrator.server.doctor import owner
from orchestrator.server.doctor.findings import Finding
from orchestrator.store.files import file_systems

_WITHIN_S = 600.0  # a package manager downloads, and sudo asks for a password


class NotCured(Unavailable):
    """A step of the cure failed."""


def check_sandbox() -> Iterator[Finding]:
    """Jobs of several people can be kept apart."""
    if sentence := isolation.problem():
        yield Finding("T13", sentence)


def check_torch() -> Iterator[Finding]:
    """The torch that jobs run with can use the GPUs of this machine."""
    here = torch_builds.installed()
    if here is None or settings.ENVIRONMENT.devices not in {"auto", "nvml"}:
        return
    if sentence := torch_builds.misfit(*here, torch_builds.read_host()):
        yield Finding("F79", f"{sentence} `{server_command('torch')}` installs the build for this driver.")


def check_home() -> Iterator[Finding]:
    """The state lies on a disk of this machine: the locks of attempts, sockets and live readings need one."""
    mount = file_systems.mount_of(settings.HOME.root)
    if mount.is_network:
        yield Finding(
            "F58",
            f"BERTH_HOME ({settings.HOME.root}) is on a network file system ({mount.kind} at {mount.point}); a lock that "
            "is lost there can run a job twice. Move it to a local disk (docs/how-to/use-network-storage.md).",
        )


def describe() -> Iterator[str]:
    """The sandbox's level, its parts, and what keeps it from being better, as lines."""
    level = isolation.level()
    yield f"Sandbox level {level}: {isolation.LEVELS[level].name}."
    for wall in isolation.walls():
        yield f"  {isolation.WALLS[wall]} ({wall})"
    if reason := isolation.refusal():
        yield f"  {reason.sentence}"
        if reason.cure.is_ours:
            yield f"  `{server_command('doctor --fix')}` would, as root:"
            yield from (f"    {step}" for step in reason.cure.steps)
    if missing := isolation.missing_for_level_2():
        yield f"  Level 2 is missing: {missing}. Run Berth as a service: docs/how-to/harden.md."


def fix(tell: Callable[[str], object]) -> None:
    """Apply the cure of what refuses the sandbox, with sudo unless this is root.

    Raises:
        NotCured: with the step that failed, or where the cure lies outside of this machine.
    """
    reason = isolation.refusal()
    if reason is None:
        tell("The sandbox starts; there is nothing to fix.")
        return
    if not reason.cure.is_ours:
        raise NotCured(f"Doctor cannot fix this. {reason.sentence}")
    for step in reason.cure.steps:
        tell(step)
    _apply(reason.cure)
    isolation.forget()
    if remaining := isolation.refusal():
        raise NotCured(f"Every step was done, but there is still no sandbox. {remaining.sentence}")
    tell("The sandbox starts now. A running server notices within half a minute.")


def _apply(cure: Cure) -> None:
    sudo = _sudo()
    with owner.root():
        for path, text in cure.files:
            _run([*sudo, "tee", path], text)
        for command in cure.commands:
            _run([*sudo, *command], None)


def _sudo() -> list[str]:
    if owner.can_be_root():
        return []
    if shutil.which("sudo") is None:
        raise NotCured("These steps need root, and sudo is not installed. Run them as root by hand.")
    return ["sudo"]


def _run(command: Sequence[str], text: str | None) -> None:
    try:
        done = subprocess.run(  # noqa: S603 -- the commands of a cure, as a list
            command, input=text, capture_output=True, text=True, timeout=_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotCured(f"The step `{' '.join(command)}` could not be run: {error}.") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise NotCured(f"The step `{' '.join(command)}` failed: {lines[-1]}")
