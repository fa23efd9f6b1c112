"""Where sessions are reached: each one's address, the session that an address means, and why the port may be closed."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit
from uuid import UUID

from django.conf import settings
from django.http.request import split_domain_port, validate_host

from orchestrator.exceptions import Sentence
from orchestrator.jobs.launch.session_programs import base_path
from orchestrator.store.files.durable import write_durably

LONGEST_PATH_BYTES = 8192
_PORT_PROBLEM = "sessions-port.problem"  # the web process writes it, which opens the port
_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_LABEL = re.compile(_UUID)
_PREFIX = re.compile(rf"/s/({_UUID})/")
# Visible ASCII without a backslash, which some programs read as a slash.
_PLAIN = re.compile(rb"/[!-\[\]-~]*")


class WrongAddress(Exception):
    """No session can have this address; the text says why."""

    status = 404


class WrongName(WrongAddress):
    """No session has this host name."""

    status = 421


@dataclass(frozen=True, slots=True)
class Place:
    """One session's address: where a request arrived, checked."""

    job_id: UUID
    origin: str  # scheme, name and port, as browsers write it into Origin
    base: str  # the path that all its addresses begin with

    @property
    def secure(self) -> bool:
        return self.origin.startswith("https:")


def address_of(job_id: UUID, berth_origin: str) -> str:
    """The address of a session for a reader of Berth at this origin.

    Args:
        berth_origin: where the reader sees Berth; its name serves the sessions too unless a setting names another.
    """
    setting = settings.ENVIRONMENT.sessions
    parts = urlsplit(berth_origin)
    name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    origin = setting.url.replace("*", str(job_id)) or f"{parts.scheme}://{name}:{setting.port}"
    return f"{origin}{base_path(job_id)}"


def place_of(scheme: str, host: str, raw_path: bytes) -> Place:
    """The session that a request means.

    Args:
        host: the Host header.
        raw_path: as it was sent, with its escapes.

    Raises:
        WrongAddress: the name or the path is no session's.
    """
    check_path(raw_path)
    setting = settings.ENVIRONMENT.sessions
    host = host.lower()
    if setting.own_origins:
        return _by_name(setting.url, host)
    if setting.url and urlsplit(setting.url).netloc != host:
        raise WrongName(Sentence("Sessions are at {url}, not at this name.", url=setting.url))
    if not setting.url and not _is_ours(host):
        raise WrongName("This server does not answer to that host name.")
    found = _PREFIX.match(raw_path.decode("ascii"))
    if found is None:
        raise WrongAddress("There is no session at this address. Open one from Berth's page Sessions.")
    origin = setting.url or f"{'https' if settings.ENVIRONMENT.tls else scheme}://{host}"
    return Place(UUID(found[1]), origin, found[0])


def _by_name(url: str, host: str) -> Place:
    parts = urlsplit(url)
    label, _, rest = host.partition(".")
    if f"*.{rest}" != parts.netloc or not _LABEL.fullmatch(label):
        raise WrongName(Sentence("Sessions are at {url}, not at this name.", url=url))
    return Place(UUID(label), f"{parts.scheme}://{host}", "/")


def _is_ours(host: str) -> bool:
    domain, _ = split_domain_port(host)
    return bool(domain) and validate_host(domain, settings.ALLOWED_HOSTS)


def check_path(raw_path: bytes) -> None:
    """Refuse paths that two programs could read differently.

    Raises:
        WrongAddress: it has dot segments, backslashes or signs that no browser sends.
    """
    if len(raw_path) > LONGEST_PATH_BYTES or not _PLAIN.fullmatch(raw_path):
        raise WrongAddress("This path cannot be read; send it as browsers do, with escapes.")
    decoded = unquote_to_bytes(raw_path)
    if b"\\" in decoded or any(sign < 32 or sign == 127 for sign in decoded):
        raise WrongAddress("This path has a backslash or a control character.")
    if {b".", b".."} & set(decoded.split(b"/")):
        raise WrongAddress(
            "This path has a segment . or .., which the program could follow out of the session."
        )


def note_port_problem(folder: Path, sentence: str) -> None:
    """Keep why the second port cannot be used, for all other processes; an empty sentence: it can.

    Args:
        folder: of the services' files.
    """
    if sentence:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(folder / _PORT_PROBLEM, sentence.encode())
    else:
        (folder / _PORT_PROBLEM).unlink(missing_ok=True)


def port_problem(folder: Path) -> str:
    """Why browsers reach no session, with what to do; empty if they do, or if no port is set."""
    try:
        return (folder / _PORT_PROBLEM).read_text(errors="replace")
    except OSError:
        return ""
