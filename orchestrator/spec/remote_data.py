"""Data that a job names by its address: ``hf://``, ``s3://``, ``gs://`` and ``https://``, with an optional checksum."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from orchestrator.exceptions import Sentence
from orchestrator.spec.plain_text import why_unwritable

LONGEST_ADDRESS = 2048  # presigned addresses are long
SCHEMES = ("hf", "s3", "gs", "https", "http")
EXAMPLES = "hf://datasets/stanfordnlp/imdb, s3://bucket/folder, gs://bucket/folder or https://host/file.csv"
_NAMED = re.compile(r"(?:([^=/:?#]*)=)?([a-z][a-z0-9+.-]*://.*)", re.ASCII | re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_CHECKSUM = re.compile(r"sha256=([0-9A-Fa-f]{64})", re.ASCII)
_UNPACK = "unpack"
_ARCHIVE = re.compile(r"(\.tar)?\.(zip|tar|tgz|tbz2|txz|gz|bz2|xz)$", re.IGNORECASE)
_QUERY = re.compile(r"""\b([a-z][a-z0-9+.-]*://[^\s?#'"]+)\?[^\s#'"]+""", re.ASCII | re.IGNORECASE)
_REPOSITORY = re.compile(r"(datasets|models)/[\w.-]+(?:/[\w.-]+)?(?:@[^@\s/]+)?(?:/[^@]*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class RemoteData:
    """One address, as a job names it."""

    name: str  # of its variable and placeholder
    address: str  # without the checksum
    sha256: str = ""  # of the one file that it is
    unpack: bool = False  # that file is an archive, whose files the job gets

    @property
    def scheme(self) -> str:
        return self.address.partition("://")[0]

    @property
    def host(self) -> str:
        """The host that serves it; a bucket's and a repository's are known to their services only."""
        return urlsplit(self.address).hostname or "" if self.scheme in {"http", "https"} else ""

    @property
    def reference(self) -> str:
        """The text that means the same."""
        named = "" if self.name == _name_of(self.address, unpack=self.unpack) else f"{self.name}="
        words = [*([f"sha256={self.sha256}"] if self.sha256 else []), *([_UNPACK] if self.unpack else [])]
        return f"{named}{self.address}{'#' if words else ''}{'&'.join(words)}"


def without_query(address: str) -> str:
    """An address for people, with its checksum: the query of a presigned one is a password."""
    plain, query, rest = address.partition("?")
    checksum = rest.partition("#")[1:] if query else ()
    return f"{plain}{''.join(checksum)}"


def without_queries(text: str) -> str:
    """A text for people who may not see the queries of addresses in it."""
    return _QUERY.sub(r"\1?…", text)


def looks_remote(text: str) -> bool:
    """Whether a text names data by an address, well or badly."""
    return _NAMED.fullmatch(text) is not None


def read_remote(text: str) -> RemoteData:
    """Read ``[NAME=]ADDRESS[#sha256=CHECKSUM][#unpack]``; both are ``#sha256=CHECKSUM&unpack``.

    Raises:
        ValueError: with what is wrong, and what an address looks like.
    """
    matched = _NAMED.fullmatch(text)
    if matched is None:
        raise ValueError(
            Sentence(
                "{text!r} is not an address; write one such as {examples}", text=text[:80], examples=EXAMPLES
            )
        )
    address, _, fragment = matched[2].partition("#")
    words = re.split("[&#]", fragment) if fragment else []
    unpack = _UNPACK in words
    words = [word for word in words if word != _UNPACK]
    sha256 = _read_checksum("&".join(words)) if words else ""
    _check(address)
    name = matched[1] if matched[1] is not None else _name_of(address, unpack=unpack)
    if not _NAME.fullmatch(name):
        raise ValueError(
            Sentence(
                "{name!r} cannot be the name of this data (letters, digits, '.', '_' and '-', at most 64); put one before the address: data={address}",
                name=name[:40],
                address=address[:80],
            )
        )
    remote = RemoteData(name, address, sha256, unpack)
    if sha256 and remote.scheme == "hf":
        raise ValueError(
            "#sha256= is for one file; a repository is fixed by its commit: @COMMIT after its name"
        )
    return remote


def _read_checksum(fragment: str) -> str:
    matched = _CHECKSUM.fullmatch(fragment)
    if matched is None:
        raise ValueError(
            Sentence(
                "#{fragment} is not a checksum; write #sha256= and 64 hexadecimal digits, or #unpack",
                fragment=fragment[:40],
            )
        )
    return matched[1].lower()


def _check(address: str) -> None:
    scheme, _, rest = address.partition("://")
    if scheme not in SCHEMES:
        raise ValueError(
            Sentence(
                "Berth cannot fetch {scheme}://; write an address such as {examples}",
                scheme=scheme[:20],
                examples=EXAMPLES,
            )
        )
    if len(address) > LONGEST_ADDRESS:
        raise ValueError(
            Sentence(
                "the address has more than {longest_address:,} characters; shorten it",
                longest_address=LONGEST_ADDRESS,
            )
        )
    if why_unwritable(address) or any(
        character.isspace() or not character.isprintable() for character in address
    ):
        raise ValueError("the address has a space or a character that cannot be shown; write a space as %20")
    if scheme == "hf":
        if not _REPOSITORY.fullmatch(rest):
            raise ValueError(
                Sentence(
                    "{address!r} names no repository; write hf://datasets/OWNER/NAME@REVISION",
                    address=address[:80],
                )
            )
        return
    try:
        parts = urlsplit(address)
        host, user = parts.hostname, parts.username or parts.password
        _ = parts.port
    except ValueError:
        raise ValueError(
            Sentence(
                "{address!r} is not an address; write one such as {examples}",
                address=address[:80],
                examples=EXAMPLES,
            )
        ) from None
    if user:
        raise ValueError(
            "the address holds a user name or password, which everybody could read; leave it out"
        )
    if not host:
        raise ValueError(
            Sentence(
                "{address!r} has no {part}",
                address=address[:80],
                part="host" if scheme.startswith("http") else "bucket",
            )
        )


def _name_of(address: str, *, unpack: bool = False) -> str:
    """The last part of the path, without a revision: imdb, train.csv; of a bare bucket or host, its name.

    A folder that was an archive has no ending.
    """
    scheme, _, rest = address.partition("://")
    path = rest.partition("?")[0]
    last = PurePosixPath(path).name
    if scheme == "hf":
        last = last.partition("@")[0]
    if unpack:
        last = _ARCHIVE.sub("", last) or last
    return re.sub(r"[^A-Za-z0-9._-]", "_", unquote(last)).strip("._-")[:64]
