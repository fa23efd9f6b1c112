"""What the fetching program reads from: web servers, and whatever fsspec knows; nothing of Django.

Only the program ``transfer`` imports this, under the guard of its sockets.
"""

import email.message
import importlib
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPMessage
from pathlib import PurePosixPath
from typing import IO, Any, Protocol
from urllib.parse import unquote, urlsplit

from orchestrator.jobs.data.causes import CannotFetch

READ_BYTES = 16 * 1024**2
PATIENCE_S = 60.0  # of one answer
_TOTAL = re.compile(r"bytes \d+-\d+/(\d+)")
_MD5 = re.compile(r"[0-9a-f]{32}")  # the tag of a file that came to S3 in one part


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file at its source."""

    path: str  # below the dataset's folder
    where: str  # for the source
    size_bytes: int | None
    identity: str = (
        ""  # changes when the content does; empty: unknown, so nothing of an earlier fetch is used
    )
    sha256: str = ""
    md5: str = ""


class Source(Protocol):
    """Where files come from; its library's errors pass through."""

    def files(self) -> tuple[list[RemoteFile], bool]:
        """All files, and whether they are one file instead of a folder."""

    def read(self, file: RemoteFile, offset: int) -> tuple[int, Iterator[bytes]]:
        """The content from ``offset`` on, or from where the source can begin."""


def open_source(address: str, credentials: Mapping[str, str] | None, *, has_checksum: bool = False) -> Source:
    """The source of an address, with a person's credentials or as anybody.

    Args:
        has_checksum: what comes is compared with one, so that it may come without encryption.
    """
    scheme = address.partition("://")[0]
    if scheme in {"http", "https"}:
        return Web(address, has_checksum=has_checksum)
    return _STORES[scheme](address, credentials)


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from https to http where no checksum would show that the content was changed."""

    def __init__(self, *, has_checksum: bool) -> None:
        self.has_checksum = has_checksum

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if req.type == "https" and urlsplit(newurl).scheme != "https" and not self.has_checksum:
            raise CannotFetch("unencrypted", f"It leads on to {newurl.partition('?')[0][:200]}.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class Web:
    """One file of a web server."""

    def __init__(self, address: str, *, has_checksum: bool = False) -> None:
        self.address = address
        self._opener = urllib.request.build_opener(Redirects(has_checksum=has_checksum))

    def files(self) -> tuple[list[RemoteFile], bool]:
        # Asks for one byte: addresses that are signed for GET answer no HEAD.
        with self._open({"Range": "bytes=0-0"}) as answer:
            headers: email.message.Message = answer.headers
            total = _TOTAL.match(headers.get("Content-Range", ""))
            length = total[1] if total else headers.get("Content-Length")
            tag = headers.get("ETag", "")
        identity = "" if tag.startswith("W/") else tag
        name = PurePosixPath(unquote(urlsplit(self.address).path)).name or "data"
        return [RemoteFile(name, self.address, int(length) if length else None, identity)], True

    def read(self, file: RemoteFile, offset: int) -> tuple[int, Iterator[bytes]]:
        answer = self._open({"Range": f"bytes={offset}-", "If-Range": file.identity} if offset else {})
        return (offset if answer.status == 206 else 0), _chunks(answer)

    def _open(self, headers: Mapping[str, str]) -> Any:
        request = urllib.request.Request(self.address, headers={"User-Agent": "berth", **headers})  # noqa: S310 -- http, checked
        try:
            return self._opener.open(request, timeout=PATIENCE_S)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and "Range" in headers:  # an empty file has no first byte
                return self._opener.open(self.address, timeout=PATIENCE_S)
            raise


def _chunks(answer: Any) -> Iterator[bytes]:
    with answer:
        while chunk := answer.read(READ_BYTES):
            yield chunk


class Store:
    """A file, or the files below a folder, of a file system of fsspec."""

    def __init__(self, system: Any, path: str, **reading: object) -> None:
        self.system = system
        self.path = path.rstrip("/")
        self.reading = reading

    def files(self) -> tuple[list[RemoteFile], bool]:
        found: Mapping[str, Mapping[str, Any]] = self.system.find(self.path, detail=True)
        folders = {str(parent) for name in found for parent in PurePosixPath(name).parents} | {self.path}
        plain = {
            name: facts
            for name, facts in found.items()
            # Consoles of buckets mark a folder by an empty object of its name.
            if facts.get("type", "file") == "file" and (facts.get("size") or name.rstrip("/") not in folders)
        } or ({self.path: found[self.path]} if self.path in found else {})
        if not plain:
            raise FileNotFoundError(self.path)
        is_file = list(plain) == [self.path]
        return [self._file(name, facts, is_file=is_file) for name, facts in plain.items()], is_file

    def _file(self, name: str, facts: Mapping[str, Any], *, is_file: bool) -> RemoteFile:
        relative = PurePosixPath(name).name if is_file else name.removeprefix(self.path).lstrip("/")
        tag = str(facts.get("ETag") or facts.get("etag") or "").strip('"')
        large = facts.get("lfs") or {}  # of a repository's large file
        sha256 = str(_get(large, "sha256") or "")
        identity = sha256 or tag or str(facts.get("md5Hash") or facts.get("blob_id") or "")
        return RemoteFile(
            relative,
            name,
            facts.get("size"),
            identity,
            sha256=sha256,
            md5=tag if _MD5.fullmatch(tag) and not facts.get("ServerSideEncryption") else "",
        )

    def read(self, file: RemoteFile, offset: int) -> tuple[int, Iterator[bytes]]:
        return offset, self._read(file, offset)

    def _read(self, file: RemoteFile, offset: int) -> Iterator[bytes]:
        size = file.size_bytes or 0
        for begin in range(offset, size, READ_BYTES):
            end = min(size, begin + READ_BYTES)
            yield self.system.cat_file(file.where, start=begin, end=end, **self.reading)


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _hugging_face(address: str, credentials: Mapping[str, str] | None) -> Store:
    hub = importlib.import_module("huggingface_hub")
    token = (credentials or {}).get("HF_TOKEN")
    # False: no token of this machine either.
    system = hub.HfFileSystem(token=token or False, endpoint=os.environ.get("HF_ENDPOINT") or None)
    place = system.resolve_path(address.removeprefix("hf://").removeprefix("models/"))
    about = hub.HfApi(token=token or False, endpoint=os.environ.get("HF_ENDPOINT") or None).repo_info(
        place.repo_id, repo_type=place.repo_type, revision=place.revision
    )
    # All files of one commit, even if the branch moves while they are fetched.
    kind = {"dataset": "datasets/", "space": "spaces/"}.get(place.repo_type, "")
    path = f"{kind}{place.repo_id}@{about.sha}/{place.path_in_repo}"
    return Store(system, path, cache_type="none")  # each read is one request anyway


def _s3(address: str, credentials: Mapping[str, str] | None) -> Store:
    known = credentials or {}
    key = known.get("AWS_ACCESS_KEY_ID")
    client: dict[str, str] = {}
    if region := known.get("AWS_REGION") or known.get("AWS_DEFAULT_REGION"):
        client["region_name"] = region
    system = importlib.import_module("s3fs").S3FileSystem(
        anon=not key,
        key=key,
        secret=known.get("AWS_SECRET_ACCESS_KEY"),
        token=known.get("AWS_SESSION_TOKEN"),
        endpoint_url=os.environ.get("AWS_ENDPOINT_URL") or None,
        client_kwargs=client,
        config_kwargs={"connect_timeout": 10, "read_timeout": PATIENCE_S, "retries": {"max_attempts": 2}},
        use_listings_cache=False,
    )
    return Store(system, address.removeprefix("s3://"))


def _google(address: str, credentials: Mapping[str, str] | None) -> Store:
    text = (credentials or {}).get("GOOGLE_CREDENTIALS")
    try:
        token = json.loads(text) if text else "anon"
    except ValueError:
        raise PermissionError("the secret GOOGLE_CREDENTIALS is not the JSON of a service account") from None
    system = importlib.import_module("gcsfs").GCSFileSystem(token=token, use_listings_cache=False)
    return Store(system, address.removeprefix("gs://"))


_STORES = {"hf": _hugging_face, "s3": _s3, "gs": _google}
