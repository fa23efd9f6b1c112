"""The settings of a deployment, read from the environment once; a wrong one stops the start with a message."""

import hashlib
import ipaddress
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from orchestrator.exceptions import WrongSetting
from orchestrator.store.files.file_systems import mount_of
from orchestrator.store.layout import Home

LONGEST_SOCKET_PATH_BYTES = 100  # the kernel refuses 108 and more; leave room for temporary names
# An origin: a star stands for a session's id, as the first label of the name.
_SESSIONS_URL = re.compile(
    r"https?://(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[1-9]\d{0,4})?", re.ASCII
)
_SHORTEST_LEASE_S = 10
# Ray takes these by default, for its clients and workers, its dashboard and the dashboard's agents.
_PORTS_OF_RAY = {*range(10_001, 20_000), 8265, 52365}
_DEVICES = re.compile(r"auto|nvml|cpu:[1-9]\d{0,3}|sim:[1-9]\d{0,3}x[1-9]\d{0,4}GiB", re.ASCII)


@dataclass(frozen=True, slots=True)
class SessionsSetting:
    """Where browsers reach sessions: our second port, and the address that leads to it."""

    port: int = 0  # 0: none, so sessions open in no browser
    url: str = ""  # with a star for the session's id, or a plain origin; empty: the port beside Berth's own

    @property
    def own_origins(self) -> bool:
        """Whether each session has an origin of its own, so that its scripts reach nothing of another's."""
        return "*" in self.url


@dataclass(frozen=True, slots=True)
class Environment:
    """The operator's settings."""

    home: Home
    port: int
    bind: str  # address that the web process listens on
    devices: str
    cpu_slots: int | None  # beside GPUs; None: by the number of cores
    redis_url: str
    own_redis: bool  # we start and stop Redis
    database: Mapping[str, object]  # in Django's form
    debug: bool
    half_life_s: float  # of use in the fair share
    trust_all_users: bool  # jobs of several people may run without a sandbox
    job_disk_gib: int | None  # disk limit of one job
    notify_allow: tuple[str, ...]  # hosts inside the network that notifications may go to
    mail_url: str  # Apprise address of the server's mail account; empty: none
    allowed_hosts: tuple[str, ...]
    tls: bool  # people connect through a proxy that terminates TLS
    proxies: str  # trusted for the caller's address and scheme
    log_format: str  # text, json
    keep_days: int  # how long ended jobs keep their files; 0: forever
    user_disk_gib: int  # limit of one person's ended jobs; 0: none
    sockets_a_person: int  # open live views per person
    user_cache_gib: int  # limit of one person's cache; 0: none is kept
    wheels: Path | None  # the only place that packages come from; None: the index
    torch_index: str  # build of torch, or the address of its index; empty: by the driver
    data_cache_gib: int  # limit of all fetched data together; 0: none
    data_keep_days: int  # how long fetched data is kept that no job uses; 0: forever
    data_allow: tuple[str, ...]  # hosts inside the network that data may be fetched from
    user_data_gib: int  # limit of one person's pushed data; 0: none
    image_gib: int = 50  # limit of one container image, unpacked; 0: none
    image_folders: tuple[Path, ...] = ()  # folders of this server that images may come from
    image_logins: Path | None = None  # names and passwords for registries, as docker's config.json has them
    packages_gib: int = 100  # limit of the downloaded packages that no environment uses; 0: none
    visibility: str = "project"  # who sees jobs where neither they nor their pool say it
    second_factor: str = ""  # who needs one to sign in: staff, everybody; empty: who chose one
    git_roots: tuple[Path, ...] = ()  # folders of this server that code may be fetched from
    sessions: SessionsSetting = SessionsSetting()  # where browsers reach sessions
    nodes: tuple[str, int] | None = None  # where other servers join this one; None: it has no others
    node_lease_s: int = 120  # how long runs there go on while the servers cannot reach each other; 0: forever

    @property
    def redis_socket(self) -> Path:
        """The socket of our own Redis."""
        return redis_socket(self.home)


def read_environment(variables: Mapping[str, str] = os.environ) -> Environment:
    """Read and check every ``BERTH_*`` variable and ``DATABASE_URL``.

    Raises:
        WrongSetting: with a sentence for the terminal.
    """
    variables = set_ones(variables)
    home = Home(_read_home(variables))
    redis_url = variables.get("BERTH_REDIS_URL", "")
    if redis_url and not redis_url.startswith(("redis://", "rediss://", "unix://")):
        raise WrongSetting(
            f"BERTH_REDIS_URL is {redis_url!r}; give redis://host:port/0 or unix:///path/to/redis.sock."
        )
    return Environment(
        home=home,
        port=_read_port(variables),
        bind=variables.get("BERTH_BIND", "127.0.0.1"),
        devices=_read_devices(variables),
        cpu_slots=_read_cpu_slots(variables),
        redis_url=redis_url or f"unix://{redis_socket(home)}",
        own_redis=not redis_url,
        database=_read_database(variables, home),
        debug=_read_switch(variables, "BERTH_DEBUG"),
        half_life_s=_read_days(variables, "BERTH_FAIR_SHARE_DAYS", "7") * 86_400,
        trust_all_users=_read_switch(variables, "BERTH_TRUST_ALL_USERS"),
        job_disk_gib=_read_gib(variables, "BERTH_JOB_DISK_GIB"),
        notify_allow=_read_list(variables, "BERTH_NOTIFY_ALLOW"),
        mail_url=_read_mail(variables),
        allowed_hosts=_read_list(variables, "BERTH_ALLOWED_HOSTS"),
        tls=_read_switch(variables, "BERTH_TLS"),
        proxies=_read_proxies(variables),
        log_format=_read_choice(variables, "BERTH_LOG", ("text", "json")),
        keep_days=_read_count(variables, "BERTH_KEEP_DAYS"),
        user_disk_gib=_read_count(variables, "BERTH_USER_DISK_GIB"),
        sockets_a_person=_read_sockets(variables),
        user_cache_gib=_read_count(variables, "BERTH_CACHE_GIB", default="100"),
        packages_gib=_read_count(variables, "BERTH_PACKAGES_GIB", default="100"),
        image_gib=_read_count(variables, "BERTH_IMAGE_GIB", default="50"),
        image_folders=_read_folders(variables, "BERTH_IMAGE_FOLDERS"),
        image_logins=_read_file(variables, "BERTH_IMAGE_LOGINS"),
        wheels=_read_folder(variables, "BERTH_WHEELS"),
        torch_index=_read_torch_index(variables),
        data_cache_gib=_read_count(variables, "BERTH_DATA_CACHE_GIB", default="500"),
        data_keep_days=_read_count(variables, "BERTH_DATA_KEEP_DAYS", default="30"),
        data_allow=_read_list(variables, "BERTH_DATA_ALLOW"),
        user_data_gib=_read_count(variables, "BERTH_USER_DATA_GIB", default="100"),
        visibility=_read_choice(variables, "BERTH_VISIBILITY", ("project", "private", "lab")),
        second_factor=_read_second_factor(variables),
        git_roots=_read_folders(variables, "BERTH_GIT_ROOTS"),
        sessions=_read_sessions(variables),
        nodes=_read_nodes(variables),
        node_lease_s=_read_lease(variables),
    )


def set_ones(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that are set to something: a compose file and a unit pass the others as empty texts."""
    return {name: text for name, text in variables.items() if text}


def _read_second_factor(variables: Mapping[str, str]) -> str:
    chosen = variables.get("BERTH_SECOND_FACTOR", "")
    if chosen not in {"", "staff", "everybody"}:
        raise WrongSetting(f"BERTH_SECOND_FACTOR is {chosen!r}; give staff or everybody, or leave it empty.")
    return chosen


def redis_socket(home: Home) -> Path:
    """Path of our Redis socket; for a long BERTH_HOME in a hashed folder of the user's runtime directory."""
    plain = home.redis / "redis.sock"
    if len(bytes(plain)) <= LONGEST_SOCKET_PATH_BYTES:
        return plain
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    digest = hashlib.sha256(bytes(home.root)).hexdigest()[:16]
    return runtime / f"berth-{os.getuid()}-{digest}" / "redis.sock"


def _read_home(variables: Mapping[str, str]) -> Path:
    text = variables.get("BERTH_HOME", "~/.berth")
    try:
        home = Path(text).expanduser()
    except RuntimeError:  # ~name of an unknown user
        raise WrongSetting(f"BERTH_HOME is {text!r}, but there is no such user; give a path.") from None
    if not home.is_absolute():
        raise WrongSetting(f"BERTH_HOME is {text!r}; give an absolute path, such as ~/.berth.")
    if home.exists() and not home.is_dir():
        raise WrongSetting(f"BERTH_HOME is {text!r}, which is a file; give a folder.")
    return home.resolve()


def _read_port(variables: Mapping[str, str]) -> int:
    text = variables.get("BERTH_PORT", "8265")
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise WrongSetting(f"BERTH_PORT is {text!r}; give a number from 1 to 65535.")
    return int(text)


def _read_sessions(variables: Mapping[str, str]) -> SessionsSetting:
    text = variables.get("BERTH_SESSIONS_PORT", "")
    if text and (not text.isascii() or not text.isdigit() or int(text) > 65535):
        raise WrongSetting(
            f"BERTH_SESSIONS_PORT is {text!r}; give a number from 1 to 65535, or 0 for no sessions in browsers."
        )
    beside = _read_port(variables) + 1
    port = int(text) if text else beside if beside <= 65535 else 0
    url = variables.get("BERTH_SESSIONS_URL", "").rstrip("/")
    if url and not _SESSIONS_URL.fullmatch(url):
        raise WrongSetting(
            f"BERTH_SESSIONS_URL is {url!r}; give the origin of every session, with a star for its id, such as "
            "https://*.sessions.lab.org, or one origin for all, such as https://berth.lab.org:8266."
        )
    return SessionsSetting(port, url.lower())


def _read_nodes(variables: Mapping[str, str]) -> tuple[str, int] | None:
    text = variables.get("BERTH_NODES", "")
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise WrongSetting(
            f"BERTH_NODES is {text!r}; give the address of this server that others reach, with a free port, such as "
            "10.0.0.5:6380."
        )
    if int(port) in _PORTS_OF_RAY:
        raise WrongSetting(
            f"BERTH_NODES is {text!r}, and Ray itself uses port {port}; give another one, such as 6380, but none from "
            "10001 to 19999."
        )
    return host, int(port)


def _read_lease(variables: Mapping[str, str]) -> int:
    text = variables.get("BERTH_NODE_LEASE_S", "120")
    if not re.fullmatch(r"\d{1,6}", text, re.ASCII) or 0 < int(text) < _SHORTEST_LEASE_S:
        raise WrongSetting(
            f"BERTH_NODE_LEASE_S is {text!r}; give whole seconds from {_SHORTEST_LEASE_S}, or 0 for leases that never end."
        )
    return int(text)


def _read_devices(variables: Mapping[str, str]) -> str:
    text = variables.get("BERTH_DEVICES", "auto")
    if not _DEVICES.fullmatch(text):
        raise WrongSetting(f"BERTH_DEVICES is {text!r}; give auto, nvml, cpu:4 or sim:8x80GiB.")
    return text


def _read_cpu_slots(variables: Mapping[str, str]) -> int | None:
    text = variables.get("BERTH_CPU_SLOTS", "auto")
    if text == "auto":
        return None
    if not re.fullmatch(r"\d{1,4}", text, re.ASCII):
        raise WrongSetting(f"BERTH_CPU_SLOTS is {text!r}; give auto, or a number from 0 (none) to 9999.")
    return int(text)


def _read_days(variables: Mapping[str, str], name: str, default: str) -> float:
    text = variables.get(name, default)
    if not re.fullmatch(r"\d{1,4}(\.\d{1,3})?", text, re.ASCII) or not 0.01 <= float(text) <= 3650:
        raise WrongSetting(f"{name} is {text!r}; give days, from 0.01 to 3650.")
    return float(text)


def _read_switch(variables: Mapping[str, str], name: str) -> bool:
    text = variables.get(name, "0")
    if text not in {"0", "1"}:
        raise WrongSetting(f"{name} is {text!r}; give 1 or 0.")
    return text == "1"


def _read_list(variables: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in variables.get(name, "").split(",") if part.strip())


def _read_proxies(variables: Mapping[str, str]) -> str:
    """Names are refused: they would never match an address, and the proxy would silently not be trusted."""
    text = variables.get("BERTH_PROXIES", "127.0.0.1")
    for part in filter(None, map(str.strip, text.split(","))):
        try:
            ipaddress.ip_network(part, strict=False)
        except ValueError:
            if part != "*":
                raise WrongSetting(
                    f"BERTH_PROXIES is {text!r}; give addresses or networks, such as 10.0.0.7,10.1.0.0/16."
                ) from None
    return text


def _read_mail(variables: Mapping[str, str]) -> str:
    """The address contains a password, so it is read from a file."""
    path = variables.get("BERTH_MAIL_FILE", "")
    if not path:
        return ""
    try:
        url = Path(path).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongSetting(f"BERTH_MAIL_FILE {path!r} cannot be read: {error}.") from None
    if not url.startswith(("mailto://", "mailtos://")):
        raise WrongSetting(
            f"BERTH_MAIL_FILE {path!r} must hold one line: mailtos://user:password@smtp.lab.org?from=berth@lab.org"
        )
    return url


def _read_gib(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name, "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10**7:
        raise WrongSetting(f"{name} is {text!r}; give a whole number of GiB, such as 200.")
    return int(text)


def _read_choice(variables: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = variables.get(name, choices[0])
    if text not in choices:
        raise WrongSetting(f"{name} is {text!r}; give {' or '.join(choices)}.")
    return text


def _read_count(variables: Mapping[str, str], name: str, *, default: str = "0") -> int:
    text = variables.get(name, default)
    if not text.isascii() or not text.isdigit() or len(text) > 7:
        raise WrongSetting(f"{name} is {text!r}; give a whole number, or 0 for no limit.")
    return int(text)


def _read_sockets(variables: Mapping[str, str]) -> int:
    text = variables.get("BERTH_SOCKETS_A_PERSON", "100")
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10**5:
        raise WrongSetting(f"BERTH_SOCKETS_A_PERSON is {text!r}; give a whole number from 1 to 100000.")
    return int(text)


def _read_folder(variables: Mapping[str, str], name: str) -> Path | None:
    text = variables.get(name, "")
    if not text:
        return None
    folder = Path(text)
    if not folder.is_absolute() or not folder.is_dir():
        raise WrongSetting(f"{name} is {text!r}; give the absolute path of a folder that is there.")
    return folder


def _read_file(variables: Mapping[str, str], name: str) -> Path | None:
    text = variables.get(name, "")
    if not text:
        return None
    path = Path(text)
    if not path.is_absolute() or not path.is_file():
        raise WrongSetting(f"{name} is {text!r}; give the absolute path of a file that is there.")
    return path


def _read_torch_index(variables: Mapping[str, str]) -> str:
    text = variables.get("BERTH_TORCH_INDEX", "")
    if not re.fullmatch(r"(default|cpu|cu\d{3}|(https?|file):///?\S+)?", text, re.ASCII):
        raise WrongSetting(
            f"BERTH_TORCH_INDEX is {text!r}; give cpu, cu126 or another build, default (where pip takes its "
            "packages), or the https:// address of an index. Without it the build fits the driver."
        )
    return text


def _refuse_network(home: Home) -> None:
    """SQLite's write-ahead log needs memory that processes share, and locks that a network may lose."""
    mount = mount_of(home.root)
    if mount.is_network:
        raise WrongSetting(
            f"BERTH_HOME is {str(home.root)!r} on a network file system ({mount.kind} at {mount.point}), where the "
            "database would be damaged. Set BERTH_HOME to a folder on a local disk, such as /var/lib/berth; datasets "
            "may stay where they are."
        )


def _read_folders(variables: Mapping[str, str], name: str) -> tuple[Path, ...]:
    """Folders with colons between them, as in PATH."""
    texts = [text for text in variables.get(name, "").split(":") if text]
    return tuple(folder for text in texts if (folder := _read_folder({name: text}, name)))


def _read_database(variables: Mapping[str, str], home: Home) -> dict[str, object]:
    url = variables.get("DATABASE_URL", "")
    if not url:
        _refuse_network(home)
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(home.database),
            "CONN_MAX_AGE": 0,
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 5,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-16000;",
            },
        }
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # an invalid port or bracket
        parts, port = urlsplit(""), None
    if parts.scheme not in {"postgres", "postgresql"} or not parts.path.strip("/"):
        raise WrongSetting(
            "DATABASE_URL must be postgresql://user:password@host:port/name (unset it to use SQLite in BERTH_HOME)."
        )
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.strip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(port or ""),
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
    }
