"""The systemd units that run Berth, of a user or of the system: one per process, one that prepares, and a target."""

import sys
from collections.abc import Mapping
from pathlib import Path

from orchestrator.server.environment import Environment

# Settings that are written into the units; secrets belong into the environment file.
KEPT = (
    "BERTH_HOME",
    "BERTH_PORT",
    "BERTH_SESSIONS_PORT",
    "BERTH_SESSIONS_URL",
    "BERTH_BIND",
    "BERTH_DEVICES",
    "BERTH_CPU_SLOTS",
    "BERTH_NODES",
    "BERTH_NODE_LEASE_S",
    "BERTH_CACHE_GIB",
    "BERTH_DATA_ALLOW",
    "BERTH_DATA_CACHE_GIB",
    "BERTH_DATA_KEEP_DAYS",
    "BERTH_USER_DATA_GIB",
    "BERTH_WHEELS",
    "BERTH_TORCH_INDEX",
    "BERTH_PACKAGES_GIB",
    "BERTH_IMAGE_GIB",
    "BERTH_IMAGE_FOLDERS",
    "BERTH_IMAGE_LOGINS",
    "BERTH_GIT_ROOTS",
    "BERTH_ALLOWED_HOSTS",
    "BERTH_REDIS_URL",
    "BERTH_TLS",
    "BERTH_PROXIES",
    "BERTH_LOG",
    "BERTH_KEEP_DAYS",
    "BERTH_USER_DISK_GIB",
    "BERTH_SOCKETS_A_PERSON",
    "BERTH_TRUST_ALL_USERS",
    "BERTH_VISIBILITY",
    "BERTH_JOB_DISK_GIB",
    "BERTH_FAIR_SHARE_DAYS",
    "BERTH_NOTIFY_ALLOW",
    "BERTH_MAIL_FILE",
    "BERTH_OIDC_ISSUER",
    "BERTH_OIDC_CLIENT_ID",
    "BERTH_OIDC_SECRET_FILE",
    "BERTH_OIDC_NAME",
    "BERTH_OIDC_DOMAINS",
    "BERTH_OIDC_GROUPS_CLAIM",
    "BERTH_OIDC_ROLES",
    "BERTH_NEWCOMERS",
    "BERTH_SECOND_FACTOR",
    "BERTH_LDAP_URL",
    "BERTH_LDAP_SEARCH_BASE",
    "BERTH_LDAP_USER_ATTRIBUTE",
    "BERTH_LDAP_DOMAIN",
    "BERTH_LDAP_CA_FILE",
    "BERTH_LDAP_ROLES",
)
ENVIRONMENT_FILE = "%h/.config/berth/environment"
SYSTEM_ENVIRONMENT_FILE = "/etc/berth/environment"
SYSTEM_FOLDER = Path("/etc/systemd/system")
TARGET = "berth.target"
MANAGE = "-m orchestrator.management"


def user_folder() -> Path:
    """The folder of the user's own units."""
    return Path.home() / ".config" / "systemd" / "user"


def units(
    environment: Environment, folder: Path, variables: Mapping[str, str], *, user: str | None = None
) -> dict[str, str]:
    """The text of every unit by file name.

    Supervisors get a scope of their own where this user's manager outlives logins. Elsewhere they are in the group of
    the worker or the agent, so stopping these two ends only their main process (``KillMode=process``): restarting
    them must not end a training. Both may divide their group (``Delegate=yes``), which level 2 of the sandbox needs.

    Args:
        user: whom units of the system run as; None: units of the present user.
    """
    chosen = {name: variables[name] for name in KEPT if variables.get(name)}
    processes = {
        "prepare": ("brings the database up to date", f"{MANAGE} prepare", "", ""),
        "web": ("pages and REST", f"{MANAGE} serve web", "", "prepare"),
        "worker": ("scheduling passes and launches", f"{MANAGE} serve worker", "process", "prepare"),
        "agent": ("devices, attempts and sweeps", f"{MANAGE} agent", "process", "prepare"),
    }
    if environment.own_redis:
        processes["redis"] = ("wake-ups", f"{MANAGE} serve redis", "", "")
    if environment.nodes is not None:
        processes["ray"] = ("other servers join it", f"{MANAGE} serve ray", "", "")
        processes["links"] = ("jobs on other servers", f"{MANAGE} links", "", "prepare")
    written = {
        f"berth-{name}.service": _service(name, *each, folder=folder, chosen=chosen, user=user)
        for name, each in processes.items()
    }
    wanted = " ".join(sorted(written))
    start = "default.target" if user is None else "multi-user.target"
    written[TARGET] = f"[Unit]\nDescription=Berth\nWants={wanted}\n\n[Install]\nWantedBy={start}\n"
    return written


def _service(
    name: str,
    what: str,
    command: str,
    kill_mode: str,
    after: str,
    *,
    folder: Path,
    chosen: Mapping[str, str],
    user: str | None,
) -> str:
    once = name == "prepare"
    lines = ["[Unit]", f"Description=Berth: {what}", f"PartOf={TARGET}"]
    if after:
        lines += [f"Requires=berth-{after}.service", f"After=berth-{after}.service"]
        lines += ["After=berth-redis.service"]
    lines += ["", "[Service]", f"Type={'oneshot' if once else 'exec'}"]
    lines += ["RemainAfterExit=yes"] if once else ["Restart=always", "RestartSec=1"]
    if kill_mode:
        lines += [f"KillMode={kill_mode}", "Delegate=yes", "TasksMax=infinity"]
    if user is not None:
        lines += [f"User={user}"]
    lines += [f"WorkingDirectory={_quoted(str(folder))}"]
    lines += [f"Environment={_quoted(f'{key}={value}')}" for key, value in chosen.items()]
    lines += [f"EnvironmentFile=-{ENVIRONMENT_FILE if user is None else SYSTEM_ENVIRONMENT_FILE}"]
    lines += [f"ExecStart={_quoted(sys.executable)} {command}"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Quote a value for systemd, with its special characters escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if any(sign in escaped for sign in " ;'\"\\") else escaped
