"""Transient scopes of systemd: a group of their own for processes that must outlive the service that starts them."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

_BOOTED = Path("/run/systemd/system")  # as sd_booted(3) looks
_LINGERING = Path("/var/lib/systemd/linger")
_WITHIN_S = 10.0
# The attempt limits its own processes; systemd's limit for a unit is too low for a training with many workers.
_PROPERTIES = ("--property", "Delegate=yes", "--property", "TasksMax=infinity")


def scope_command(name: str, run: Sequence[str]) -> list[str] | None:
    """The command that becomes ``run`` in a scope that may divide its control group; None where there is no manager.

    systemd-run asks the manager for the scope and then executes the rest in its own process.
    """
    program, clean = shutil.which("systemd-run"), shutil.which("env")
    if program is None or clean is None or not _BOOTED.is_dir():
        return None
    uid = os.getuid()
    if uid and not _manager_stays(uid):
        return None
    manager = "--user" if uid else "--system"
    words = [program, manager, "--scope", "--quiet", "--collect", *_PROPERTIES, f"--unit={name}"]
    return [*words, clean, "-u", "XDG_RUNTIME_DIR", *run]


def scope_environment() -> dict[str, str]:
    """The variables with which systemd-run finds the manager of this user."""
    return {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}"}


def works(name: str, run: Sequence[str]) -> bool:
    """Whether ``run`` succeeds in a scope here; False without a manager."""
    import subprocess  # late import: supervisors load this module and start no scope

    command = scope_command(name, run)
    if command is None:
        return False
    try:
        done = subprocess.run(  # noqa: S603 -- a fixed command
            command,
            env={"PATH": os.defpath, **scope_environment()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _manager_stays(uid: int) -> bool:
    """Whether this user has a manager that does not end with a login: it lingers, or runs this very process."""
    if not Path(f"/run/user/{uid}/systemd/private").exists():
        return False
    name = _user_name(uid)
    if name is not None and (_LINGERING / name).exists():
        return True
    return f"/user@{uid}.service/" in Path("/proc/self/cgroup").read_text()


def _user_name(uid: int) -> str | None:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
