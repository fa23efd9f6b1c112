"""A small LDAP directory over real sockets (RFC 4511): simple bind, search, StartTLS."""

import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from ldap3.core.exceptions import LDAPInvalidDnError
from ldap3.protocol import rfc4511
from ldap3.utils.dn import safe_dn
from pyasn1.codec.ber import encoder

OK, WRONG_PASSWORD = 0, 49
START_TLS = "1.3.6.1.4.1.1466.20037"

Entry = dict[str, list[str]]


@dataclass
class Directory:
    """The directory's people by distinguished name; records its requests."""

    people: dict[str, Entry]  # with userPassword
    context: ssl.SSLContext
    binds: list[str] = field(default_factory=list)
    in_the_clear: list[str] = field(default_factory=list)  # passwords that came without TLS
    port: int = 0

    def bind(self, name: str, password: str) -> int:
        self.binds.append(name)
        if not name or not password:
            return OK  # anonymous, as directories have it
        entry = self._entry(name)
        return OK if entry is not None and password in entry["userPassword"] else WRONG_PASSWORD

    def _entry(self, name: str) -> Entry | None:
        try:
            wanted = safe_dn(name).casefold()
        except LDAPInvalidDnError:  # what is no name belongs to nobody
            return None
        return next((entry for dn, entry in self.people.items() if safe_dn(dn).casefold() == wanted), None)

    def search(self, base: str, matches: Any) -> list[tuple[str, Entry]]:
        return [(dn, entry) for dn, entry in self.people.items() if dn.endswith(base) and matches(entry)]


class _Connection(socketserver.BaseRequestHandler):
    directory: Directory

    def handle(self) -> None:
        self.is_encrypted = False
        while (data := self._read()) is not None:
            [(_, parts)] = _parse(data)
            (_, number), (kind, operation), *_ = parts
            self.number = int.from_bytes(number, "big")
            match kind:
                case 0x60:
                    self._bind(operation)
                case 0x63:
                    self._search(operation)
                case 0x77:
                    self._start_tls(operation)
                case _:
                    return

    def finish(self) -> None:
        self.request.close()  # the one with TLS: socketserver knows only the one before

    def _read(self) -> bytes | None:
        head = self._exactly(2)
        if head is None:
            return None
        length, extra = head[1], b""
        if length & 0x80:
            extra = self._exactly(length & 0x7F) or b""
            length = int.from_bytes(extra, "big")
        return head + extra + (self._exactly(length) or b"")

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            part = self.request.recv(count - len(data))
            if not part:
                return None
            data += part
        return data

    def _bind(self, parts: list[Any]) -> None:
        name, password = parts[1][1].decode(), parts[2][1].decode()
        if password and not self.is_encrypted:
            self.directory.in_the_clear.append(password)
        self._answer("bindResponse", _result(rfc4511.BindResponse(), self.directory.bind(name, password)))

    def _search(self, parts: list[Any]) -> None:
        base, question = parts[0][1].decode(), parts[6]
        wanted = [name.decode() for _, name in parts[7][1]]
        for dn, entry in self.directory.search(base, lambda entry: _matches(question, entry)):
            found = rfc4511.SearchResultEntry()
            found["object"] = dn.encode()
            for name in wanted:
                if name in entry:
                    attribute = rfc4511.PartialAttribute()
                    attribute["type"] = name
                    for value in entry[name]:
                        attribute["vals"].append(rfc4511.AttributeValue(value.encode()))
                    found["attributes"].append(attribute)
            self._answer("searchResEntry", found)
        self._answer("searchResDone", _result(rfc4511.SearchResultDone(), OK))

    def _start_tls(self, parts: list[Any]) -> None:
        assert parts[0][1].decode() == START_TLS
        self._answer("extendedResp", _result(rfc4511.ExtendedResponse(), OK))
        self.request = self.directory.context.wrap_socket(self.request, server_side=True)
        self.is_encrypted = True

    def _answer(self, kind: str, value: Any) -> None:
        message = rfc4511.LDAPMessage()
        message["messageID"] = self.number
        message["protocolOp"] = rfc4511.ProtocolOp()
        message["protocolOp"][kind] = value
        self.request.sendall(encoder.encode(message))


def _result(answer: Any, code: int) -> Any:
    answer["resultCode"] = code
    answer["matchedDN"] = ""
    answer["diagnosticMessage"] = ""
    return answer


def _parse(data: bytes) -> list[tuple[int, Any]]:
    """BER: tags with their bytes, or with their parts where they have some."""
    found = []
    while data:
        tag, length, start = data[0], data[1], 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(data[2:start], "big")
        value, data = data[start : start + length], data[start + length :]
        found.append((tag, _parse(value) if tag & 0x20 else value))
    return found


def _matches(question: tuple[int, Any], entry: Entry) -> bool:
    kind, parts = question
    if kind == 0xA0:  # and
        return all(_matches(each, entry) for each in parts)
    assert kind == 0xA3, "attribute=value is all that we ask"
    (_, name), (_, value) = parts
    return value.decode().casefold() in [each.casefold() for each in entry.get(name.decode(), [])]


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that breaks off in the middle, as one that does not trust the certificate, is no news."""


@contextmanager
def serving(people: dict[str, Entry], certificate: Path) -> Iterator[Directory]:
    """A directory on a port of localhost.

    Args:
        certificate: where its own certificate is written, which is also whom to trust.
    """
    key = certificate.with_suffix(".key")
    _write_certificate(certificate, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    directory = Directory(people, context)
    handler = type("Handler", (_Connection,), {"directory": directory})
    with _Server(("127.0.0.1", 0), handler) as server:
        directory.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield directory
        finally:
            server.shutdown()
            thread.join()


def _write_certificate(certificate: Path, key_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
