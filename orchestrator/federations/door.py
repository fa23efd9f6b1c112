"""What a site at another Berth gets and sends: the same messages as a job here, through this server into its folder.

The jobs of the federation write into these folders too, so no link in them is followed.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Final

from django.db import transaction

from orchestrator.exceptions import Conflict, Malformed, NotFound, Sentence, TooLarge, TooMany
from orchestrator.federations.asking import FederationSpec
from orchestrator.federations.invitations import Over
from orchestrator.jobs import exchanges
from orchestrator.models import FederationInvitation
from orchestrator.store.files.untrusted import open_folder_beneath, open_plain

PROTOCOL: Final = 1
PART_BYTES = 8 << 20
LEAST_ALLOWED_BYTES = 2 << 20  # of a message; with a large model more, see ``most_bytes``
MOST_WAITING = 16  # messages of one site that the server's job has not read
_KEPT_IDS = 16
_TO_SITE, _FROM_SITE, _ENDING = "to", "from", ".message"  # as training/federated/channels.py has them
_ID = re.compile(r"[0-9a-f]{32}")
_SETTINGS = ("rounds", "epochs", "batch_size", "learning_rate", "proximal", "clip", "noise", "delta", "patience_s", "seed")  # fmt: skip


def settings_of(site: FederationInvitation) -> dict[str, Any]:
    """What a site needs to know to train as the others do."""
    options, fields = site.federation.options, FederationSpec.model_fields
    return {
        "protocol": PROTOCOL,
        "federation": site.federation.name,
        "name": site.name,
        "number": site.number,
        "sites": site.federation.sites,
        **{name: options.get(name, fields[name].default) for name in _SETTINGS},
    }


def next_message(site: FederationInvitation, done: str) -> tuple[str, BinaryIO] | None:
    """The oldest message to a site, with a name for it; None: no message waits.

    Args:
        done: name of the message that the site has read; it is removed.

    Raises:
        Over: there will be none.
    """
    with _folder(site, _TO_SITE) as folder:
        for name in _waiting(folder):
            try:
                file = os.fdopen(open_plain(name, folder=folder), "rb")
            except OSError:
                continue  # of another kind, which only the owner's own code can have put there
            about = os.fstat(file.fileno())
            label = f"{name.removesuffix(_ENDING)}-{about.st_mtime_ns:x}"
            if label != done:
                _count(site, about.st_size)
                return label, file
            file.close()
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
    _check_open(site)
    return None


def _check_open(site: FederationInvitation) -> None:
    federation = site.federation
    if federation.has_ended:
        raise Over(
            Sentence("The federation {name} is {state}.", name=federation.name, state=federation.state)
        )
    if site.number in exchanges.told_of(federation.pk):
        raise Over(
            Sentence(
                "The site {name} was left out, because {why}.",
                name=site.name,
                why=exchanges.why_told(federation.pk, site.number),
            )
        )


def _count(site: FederationInvitation, size: int) -> None:
    if size > site.largest_bytes:
        site.largest_bytes = size
        site.save(update_fields=["largest_bytes"])


def most_bytes(site: FederationInvitation) -> int:
    """The largest message that a site may send: its masked update has twice the bytes of the weights it got."""
    return LEAST_ALLOWED_BYTES + 2 * site.largest_bytes


def take_part(site: FederationInvitation, message: str, offset: int, size: int, data: bytes) -> int:
    """Take a part of a message, and pass the message on once it is whole; all of this may be repeated.

    Args:
        message: its id, which a site makes up; the same id is passed on once.

    Returns:
        how many bytes of it are here.

    Raises:
        Malformed, TooLarge: it cannot be a message of a site.
        TooMany: the server's job has not read the earlier ones.
        Conflict: the part does not follow those that came before.
        Over: the federation has ended.
    """
    if not _ID.fullmatch(message):
        raise Malformed("The id of a message has 32 hexadecimal digits.")
    if message in site.applied:
        return size
    _check_open(site)
    if size > most_bytes(site) or offset + len(data) > size:
        raise TooLarge(Sentence("A message of this site has at most {most:,} bytes.", most=most_bytes(site)))
    folder = _incoming(site, message)
    try:
        here = _append(folder, message, offset, data)
        if here < size:
            return here
        os.fsync(folder)
        _pass_on(site, message, folder)
    finally:
        os.close(folder)
    return size


def _incoming(site: FederationInvitation, message: str) -> int:
    """The folder of parts, which no job sees; a site sends one message at a time, so the others in it go."""
    root = exchanges.root_of(site.federation_id)
    try:
        folder = open_folder_beneath(root, ("incoming", str(site.number)), make=True)
    except OSError as error:
        raise Over(Sentence("The federation {name} is over.", name=site.federation.name)) from error
    for entry in list(os.scandir(folder)):
        if entry.name != message:
            with suppress(FileNotFoundError):
                os.unlink(entry.name, dir_fd=folder)
    return folder


def _append(folder: int, name: str, offset: int, data: bytes) -> int:
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    with os.fdopen(fd, "r+b") as file:
        here = os.fstat(fd).st_size
        if offset > here:
            raise Conflict(Sentence("{here:,} bytes of this message are here; go on there.", here=here))
        file.seek(offset)
        file.write(data)
        file.flush()
        os.fsync(fd)
        return max(here, offset + len(data))


def _pass_on(site: FederationInvitation, message: str, incoming: int) -> None:
    """Rename the message into the site's folder in the step that records its id.

    If the record is lost after the rename, the message comes a second time; the server's job reads it once.
    """
    with transaction.atomic(), _folder(site, _FROM_SITE) as folder:
        row = FederationInvitation.objects.select_for_update().get(pk=site.pk)
        if message in row.applied:
            return
        if len(_waiting(folder)) >= MOST_WAITING:
            raise TooMany(
                "The server of the federation has not read the earlier messages.", retry_after_s=1.0
            )
        row.received += 1
        row.applied = [*row.applied, message][-_KEPT_IDS:]
        row.save(update_fields=["received", "applied"])
        try:
            os.rename(message, f"{row.received:012d}{_ENDING}", src_dir_fd=incoming, dst_dir_fd=folder)
        except FileNotFoundError as error:  # another request passed it on, and its record was lost
            raise Conflict("0 bytes of this message are here; go on there.") from error


@contextmanager
def _folder(site: FederationInvitation, way: str) -> Iterator[int]:
    root = exchanges.root_of(site.federation_id)
    try:
        folder = open_folder_beneath(root, (exchanges.SITES, str(site.number), way), make=root.is_dir())
    except (OSError, NotFound) as error:
        raise Over(Sentence("The federation {name} is over.", name=site.federation.name)) from error
    try:
        yield folder
    finally:
        os.close(folder)


def _waiting(folder: int) -> list[str]:
    names = os.listdir(folder)
    return sorted(name for name in names if name.endswith(_ENDING) and name.removesuffix(_ENDING).isdigit())
