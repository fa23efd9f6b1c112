"""A web server with files, as the ones that data is fetched from: ranges, tags, and whatever goes wrong."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass(slots=True)
class Files:
    """What the server has, and what it was asked."""

    contents: dict[str, bytes] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)  # instead of the content
    targets: dict[str, str] = field(default_factory=dict)  # of redirections
    cut_after: dict[str, int] = field(default_factory=dict)  # bytes, once
    requests: list[tuple[str, str]] = field(default_factory=list)  # path and range
    before: Callable[[str], object] = str  # called with the path of each request
    port: int = 0

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"


@contextmanager
def serve_files() -> Iterator[Files]:
    """Serve files on a port of the loopback device."""
    files = Files()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, wanted = urlsplit(self.path).path.lstrip("/"), self.headers.get("Range", "")
            files.requests.append((path, wanted))
            files.before(path)
            if path in files.targets:
                self._answer(302, b"", Location=files.targets[path])
            elif path in files.statuses:
                self._answer(files.statuses[path], b"no")
            elif (content := files.contents.get(path)) is None:
                self._answer(404, b"not here")
            else:
                self._send(path, content, wanted)

        def _send(self, path: str, content: bytes, wanted: str) -> None:
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            if not wanted or self.headers.get("If-Range", tag) != tag:
                self._answer(200, content, cut=files.cut_after.pop(path, None), ETag=tag)
                return
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last or len(content)), len(content) - 1) + 1
            cut = None if last else files.cut_after.pop(path, None)
            about = f"bytes {begin}-{end - 1}/{len(content)}"
            self._answer(206, content[begin:end], cut=cut, ETag=tag, **{"Content-Range": about})

        def _answer(self, status: int, body: bytes, *, cut: int | None = None, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:cut])
            if cut is not None:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    files.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield files
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
