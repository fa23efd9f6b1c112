"""A bucket and a repository, as much of them as their clients ask for, over the loopback device."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c" * 40


@dataclass(slots=True)
class Stores:
    """What is there: ``objects`` of the bucket ``lab``, and ``files`` of the repository ``lab/digits``."""

    objects: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    key: str = ""  # who may read: an access key, or a token; empty: everybody
    port: int = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stores: Stores

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = (
            json.loads(body).get("paths", []) if body.startswith(b"{") else parse_qs(body.decode())["paths"]
        )
        self._json([_entry(path, self.stores.files[path]) for path in asked if path in self.stores.files])

    def do_GET(self) -> None:
        path, query = unquote(urlsplit(self.path).path), parse_qs(urlsplit(self.path).query)
        if self.stores.key and self.stores.key not in self.headers.get("Authorization", ""):
            self._refuse(path)
        elif path == "/api/datasets/lab/digits" or path.startswith("/api/datasets/lab/digits/revision/"):
            self._json({"id": "lab/digits", "sha": COMMIT, "siblings": [], "private": bool(self.stores.key)})
        elif path.startswith("/api/datasets/lab/digits/tree/"):
            self._json([_entry(name, content) for name, content in self.stores.files.items()])
        elif path.startswith(f"/datasets/lab/digits/resolve/{COMMIT}/"):
            self._content(self.stores.files.get(path.split("/", 6)[6]))
        elif path.rstrip("/") == "/lab" and "list-type" in query:
            self._list(query.get("prefix", [""])[0])
        elif path.endswith("/storage/v1/b/lab/o"):
            prefix = query.get("prefix", [""])[0]
            names = [name for name in self.stores.objects if name.startswith(prefix)]
            self._json({"kind": "storage#objects", "items": [self._object(name) for name in names]})
        elif "/storage/v1/b/lab/o/" in path:
            name = path.partition("/storage/v1/b/lab/o/")[2]
            if name not in self.stores.objects or query.get("alt") == ["media"]:
                self._content(self.stores.objects.get(name))
            else:
                self._json(self._object(name))
        else:
            self._content(self.stores.objects.get(path.removeprefix("/lab/")))

    def _object(self, name: str) -> dict[str, str]:
        """An object as Google's storage describes it."""
        content = self.stores.objects[name]
        about = {"kind": "storage#object", "bucket": "lab", "name": name, "size": str(len(content))}
        return {**about, "etag": f"{_md5(content)[:8]}=", "updated": "2026-11-22T00:00:00.000Z"}

    def _refuse(self, path: str) -> None:
        if path.startswith("/lab"):
            self._answer(403, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")
        else:
            self._answer(401, b"{}", **{"X-Error-Code": "RepoNotFound"})

    def _list(self, prefix: str) -> None:
        rows = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(content)}</Size><ETag>&quot;{_md5(content)}&quot;</ETag>"
            "<LastModified>2026-11-22T00:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
            for key, content in self.stores.objects.items()
            if key.startswith(prefix)
        )
        self._answer(
            200,
            f"<ListBucketResult><Name>lab</Name><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode(),
        )

    def _content(self, content: bytes | None) -> None:
        if content is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", **{"X-Error-Code": "EntryNotFound"})
            return
        about = {
            "ETag": f'"{_md5(content)}"',
            "Last-Modified": "Sun, 22 Nov 2026 00:00:00 GMT",
            "X-Repo-Commit": COMMIT,
        }
        wanted = self.headers.get("Range", "").removeprefix("bytes=")
        if not wanted:
            self._answer(200, content, **about)
            return
        first, _, last = wanted.partition("-")
        begin, end = int(first), min(int(last or len(content)), len(content) - 1) + 1
        self._answer(
            206, content[begin:end], **about, **{"Content-Range": f"bytes {begin}-{end - 1}/{len(content)}"}
        )

    def _json(self, value: Any) -> None:
        self._answer(200, json.dumps(value).encode(), **{"Content-Type": "application/json"})

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _entry(path: str, content: bytes) -> dict[str, Any]:
    """One file of a repository; those with many bytes are kept apart, and have a checksum."""
    entry = {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}  # noqa: S324 -- git's
    if len(content) > 1000:
        sha256 = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 130}
    return entry


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@contextmanager
def serve_stores() -> Iterator[Stores]:
    stores = Stores()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Serving", (Handler,), {"stores": stores}))
    stores.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield stores
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
