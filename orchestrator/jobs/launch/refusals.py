"""Why bubblewrap starts no sandbox on this machine, and what an administrator can do about it."""

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from berth.shared.words import server_command
from orchestrator.exceptions import Sentence
from orchestrator.supervisor.sandbox.bwrap import Probe

APPARMOR_PROFILE = "berth-bwrap"
SYSCTL_FILE = "/etc/sysctl.d/60-berth.conf"
ENOUGH_NAMESPACES = 15_000
_NAMESPACES = ("user", "pid", "ipc", "uts", "mnt")  # those that a sandbox always has
_INSTALLERS = {
    "apt-get": ("install", "--yes"),
    "dnf": ("install", "--assumeyes"),
    "zypper": ("--non-interactive", "install"),
    "pacman": ("--sync", "--noconfirm"),
    "apk": ("add",),
}
_NO_NAMESPACE = re.compile("no permissions to creat|creating new namespace failed|unshare", re.IGNORECASE)
_NO_RIGHTS_INSIDE = re.compile(r"uid map|RTM_NEWADDR|loopback", re.IGNORECASE)
_NO_MOUNTS = re.compile(r"make / slave|mount proc|mounting|pivot", re.IGNORECASE)


class Cause(StrEnum):
    """What refuses the sandbox."""

    MISSING = "missing"
    LIMIT = "limit"
    SWITCHED_OFF = "switched_off"
    MASKED_PROC = "masked_proc"
    APPARMOR = "apparmor"
    CONFINED = "confined"
    SECCOMP = "seccomp"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Cure:
    """What to do: a sentence, and what ``manage.py doctor --fix`` does of it as root."""

    sentence: Sentence
    files: tuple[tuple[str, str], ...] = ()  # (path, text), written before the commands run
    commands: tuple[tuple[str, ...], ...] = ()

    @property
    def is_ours(self) -> bool:
        """Whether doctor can apply the cure; settings of a container are outside of it."""
        return bool(self.commands)

    @property
    def steps(self) -> list[str]:
        """What doctor does, as lines for a terminal."""
        lines: list[str] = []
        for path, text in self.files:
            lines += [f"write {path}:", *(f"    {line}" for line in text.splitlines())]
        return lines + [f"run {' '.join(command)}" for command in self.commands]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no sandbox."""

    cause: Cause
    why: Sentence
    error: str
    cure: Cure

    @property
    def sentence(self) -> Sentence:
        """All of it for people."""
        error = self.error.rstrip(".")
        return Sentence(
            '{why} The sandbox said: "{error}". {cure}', why=self.why, error=error, cure=self.cure.sentence
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """What the kernel says about itself and this process, below a root of files."""

    root: Path = Path("/")

    def setting(self, name: str) -> int | None:
        """A number of ``sysctl``; None if this kernel does not have it."""
        text = self._read(f"proc/sys/{name.replace('.', '/')}").strip()
        return int(text) if text.isdigit() else None

    def profile(self) -> str | None:
        """The AppArmor profile of this process; None without one."""
        name = self._read("proc/self/attr/current").strip("\0\n ").partition(" (")[0]
        return None if name in {"", "unconfined", "kernel"} else name

    def filters_calls(self) -> bool:
        """Whether a filter of system calls (seccomp) applies to this process."""
        return re.search(r"^Seccomp:\s*2$", self._read("proc/self/status"), re.MULTILINE) is not None

    def masks(self) -> list[str]:
        """Mounts over parts of /proc, as a container makes them."""
        points = (line.split()[4] for line in self._read("proc/self/mountinfo").splitlines())
        return sorted({point for point in points if point.startswith("/proc/")})

    def profile_of(self, program: str) -> str | None:
        """The file of an AppArmor profile that is installed for a program."""
        for path in sorted((self.root / "etc/apparmor.d").glob("*")):
            if re.search(rf"^profile\b.*\s{re.escape(program)}\s", _text(path), re.MULTILINE):
                return f"/etc/apparmor.d/{path.name}"
        return None

    def _read(self, path: str) -> str:
        return _text(self.root / path)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # no such setting, or no such security module
        return ""


HERE = Machine()


def find(probe: Probe, machine: Machine | None = None) -> Refusal:
    """The refusal of a probe that ended at level 0."""
    machine = machine or HERE
    cause = _cause(probe, machine)
    why, cure = _EXPLAIN[cause](probe, machine)
    return Refusal(cause, why, probe.error, cure)


def _cause(probe: Probe, machine: Machine) -> Cause:
    """bubblewrap's words decide between the settings that are in force."""
    error = probe.error
    if probe.bwrap is None:
        return Cause.MISSING
    if "max_" in error and "namespaces" in error:
        return Cause.LIMIT
    if "mount proc" in error and "not permitted" in error:  # AppArmor would say: Permission denied
        return Cause.MASKED_PROC
    if machine.profile() is not None and (_NO_MOUNTS.search(error) or _NO_RIGHTS_INSIDE.search(error)):
        return Cause.CONFINED
    if _NO_NAMESPACE.search(error):
        return _refused_namespace(machine)
    if _NO_RIGHTS_INSIDE.search(error) and machine.setting("kernel.apparmor_restrict_unprivileged_userns"):
        return Cause.APPARMOR
    return Cause.UNKNOWN


def _refused_namespace(machine: Machine) -> Cause:
    if machine.setting("kernel.unprivileged_userns_clone") == 0:
        return Cause.SWITCHED_OFF
    if machine.filters_calls():
        return Cause.SECCOMP
    if machine.profile() is not None:
        return Cause.CONFINED
    if machine.setting("kernel.apparmor_restrict_unprivileged_userns"):
        return Cause.APPARMOR
    return Cause.UNKNOWN


def _missing(_probe: Probe, _machine: Machine) -> tuple[Sentence, Cure]:
    for program, words in _INSTALLERS.items():
        if shutil.which(program):
            command = (program, *words, "bubblewrap")
            sentence = Sentence("Install it: {command}.", command=f"sudo {' '.join(command)}")
            return Sentence("bubblewrap is not installed."), Cure(sentence, (), (command,))
    return Sentence("bubblewrap is not installed."), Cure(
        Sentence("Install the package bubblewrap of your distribution.")
    )


def _limit(_probe: Probe, machine: Machine) -> tuple[Sentence, Cure]:
    zero = [f"user.max_{name}_namespaces" for name in _NAMESPACES if not _allows(machine, name)]
    if not zero:
        return (
            Sentence("This machine has too many namespaces, or they are nested too deeply."),
            Cure(
                Sentence(
                    "Raise the limits user.max_*_namespaces (sysctl), or run Berth outside of this container."
                )
            ),
        )
    cure = _by_sysctl(dict.fromkeys(zero, ENOUGH_NAMESPACES))
    return Sentence("The kernel's setting {settings} is 0.", settings=_all_of(zero)), cure


def _all_of(names: Sequence[str]) -> str:
    """Names as they stand in a sentence: a, or a and b."""
    listed, last = ", ".join(names[:-1]), names[-1]
    return Sentence("{names} and {last}", names=listed, last=last) if listed else last


def _allows(machine: Machine, name: str) -> bool:
    return machine.setting(f"user.max_{name}_namespaces") != 0


def _switched_off(_probe: Probe, _machine: Machine) -> tuple[Sentence, Cure]:
    return (
        Sentence(
            "The kernel's setting kernel.unprivileged_userns_clone is 0, so only root may make namespaces."
        ),
        _by_sysctl({"kernel.unprivileged_userns_clone": 1}),
    )


def _by_sysctl(values: dict[str, int]) -> Cure:
    lines = [f"{name}={value}" for name, value in values.items()]
    return Cure(
        Sentence(
            "Set it: {command}, and the same in {file} for the next boot; `{doctor}` does both. "
            "In a container this is set on the machine around it.",
            command=f"sudo sysctl -w {' '.join(lines)}",
            file=SYSCTL_FILE,
            doctor=server_command("doctor --fix"),
        ),
        ((SYSCTL_FILE, "".join(f"{line}\n" for line in lines)),),
        (("sysctl", "-p", SYSCTL_FILE),),
    )


def _masked_proc(_probe: Probe, machine: Machine) -> tuple[Sentence, Cure]:
    masks = machine.masks()
    shown: str = ", ".join(masks[:3]) or Sentence("by the container")
    if len(masks) > 3:
        shown = Sentence("{masks} and {count} more", masks=shown, count=len(masks) - 3)
    return (
        Sentence(
            "Parts of /proc are covered ({masks}), and the kernel then refuses a new /proc.", masks=shown
        ),
        Cure(
            Sentence(
                "In Docker start the container with --security-opt systempaths=unconfined (compose: security_opt), in "
                "Podman with --security-opt unmask=ALL, in Kubernetes with procMount: Unmasked; in a systemd unit remove "
                "ProtectKernelTunables=, ProtectKernelLogs= and ProtectProc=."
            )
        ),
    )


def _apparmor(probe: Probe, machine: Machine) -> tuple[Sentence, Cure]:
    why = Sentence(
        "AppArmor keeps programs without a profile from using user namespaces "
        "(kernel.apparmor_restrict_unprivileged_userns is 1, as in Ubuntu 24.04)."
    )
    program = os.path.realpath(probe.bwrap or "/usr/bin/bwrap")
    if installed := machine.profile_of(program):
        load = ("apparmor_parser", "--replace", installed)
        fix = server_command("doctor --fix")
        sentence = Sentence(
            "Its profile {profile} is not loaded; load it: {command}, or `{doctor}`.",
            profile=installed,
            command=f"sudo {' '.join(load)}",
            doctor=fix,
        )
        return why, Cure(sentence, (), (load,))
    path = f"/etc/apparmor.d/{APPARMOR_PROFILE}"
    return why, Cure(
        Sentence(
            "Give bubblewrap a profile that allows them: `{doctor}` writes {file} with sudo and loads it.",
            doctor=server_command("doctor --fix"),
            file=path,
        ),
        ((path, apparmor_profile(program)),),
        (("apparmor_parser", "--replace", path),),
    )


def apparmor_profile(program: str) -> str:
    """A profile that confines nothing and allows user namespaces."""
    return f"abi <abi/4.0>,\nprofile {APPARMOR_PROFILE} {program} flags=(unconfined) {{\n  userns,\n}}\n"


def _confined(_probe: Probe, machine: Machine) -> tuple[Sentence, Cure]:
    name = machine.profile()
    return (
        Sentence(
            "This process runs under the AppArmor profile {profile}, which refuses namespaces or mounts.",
            profile=name,
        ),
        Cure(
            Sentence(
                "In Docker or Podman start the container with --security-opt apparmor=unconfined "
                "(compose: security_opt); on a machine of your own add userns, mount, umount and pivot_root to the "
                "profile {profile}.",
                profile=name,
            )
        ),
    )


def _seccomp(_probe: Probe, _machine: Machine) -> tuple[Sentence, Cure]:
    return (
        Sentence("A filter of system calls (seccomp) refuses new namespaces to this process."),
        Cure(
            Sentence(
                "In Docker or Podman start the container with --security-opt seccomp=unconfined (compose: security_opt); "
                "in a systemd unit remove RestrictNamespaces= and the filters of SystemCallFilter=."
            )
        ),
    )


def _unknown(probe: Probe, _machine: Machine) -> tuple[Sentence, Cure]:
    return (
        Sentence("{program} cannot start a sandbox here.", program=probe.bwrap),
        Cure(Sentence("Its page says what it needs: docs/how-to/harden.md, A strong sandbox.")),
    )


_EXPLAIN = {
    Cause.MISSING: _missing,
    Cause.LIMIT: _limit,
    Cause.SWITCHED_OFF: _switched_off,
    Cause.MASKED_PROC: _masked_proc,
    Cause.APPARMOR: _apparmor,
    Cause.CONFINED: _confined,
    Cause.SECCOMP: _seccomp,
    Cause.UNKNOWN: _unknown,
}
