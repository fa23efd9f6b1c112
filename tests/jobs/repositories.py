"""Git repositories for tests, in a folder or behind an HTTPS server of their own."""

import base64
import datetime
import ipaddress
import os
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_WHO = {f"GIT_{who}_{what}": "a@lab.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(folder: Path, *words: str) -> str:
    environment = {**os.environ, **_WHO, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(folder)}
    done = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.strip()


def make_repository(folder: Path, files: Mapping[str, str]) -> str:
    """A repository with one commit on the branch main; returns the commit."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    return commit(folder, files)


def commit(folder: Path, files: Mapping[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "more")
    return git(folder, "rev-parse", "HEAD")


@contextmanager
def served(
    root: Path,
    certificate: Path,
    password: str,
    answer: Callable[[BaseHTTPRequestHandler], None] | None = None,
) -> Iterator[str]:
    """Serve the repositories below a folder over HTTPS to those who know the password; yields the address.

    Args:
        certificate: written here unless it is there.
        answer: answers all requests in place of git.
    """
    if not certificate.exists():
        _write_certificate(certificate)
    answers = [] if answer is None else [answer]
    handler = type("Handler", (_Handler,), {"root": root, "password": password, "answers": answers})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Hands requests to git's own program for web servers."""

    root: Path
    password: str
    answers: Sequence[Callable[[BaseHTTPRequestHandler], None]]  # one at most

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _answer(self) -> None:
        for answer in self.answers:
            answer(self)
            return
        given = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        if given.rpartition(":")[2] != self.password:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="lab"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        done = subprocess.run(
            ["git", "-c", "safe.directory=*", "http-backend"],
            input=self.rfile.read(int(self.headers.get("Content-Length") or 0)),
            capture_output=True,
            check=True,
            env={
                "PATH": os.defpath,
                "GIT_PROJECT_ROOT": str(self.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            },
        )
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        lines = [line.split(": ", 1) for line in head.decode().split("\r\n")]
        status = next((int(value.split()[0]) for name, value in lines if name == "Status"), 200)
        self.send_response(status)
        for name, value in lines:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _write_certificate(path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(pem + certificate.public_bytes(serialization.Encoding.PEM))
