"""Restrict which network addresses a notification may go to; standard library only."""

import ipaddress
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_COMPATIBLE = ipaddress.ip_network("::/96")  # IPv4-compatible, the oldest form
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Unreachable(OSError):
    """The address is not allowed; the sentence names it."""


class _Connecting(BaseException):
    """Raised instead of the first connection; a BaseException, so that no library catches it."""


def is_public(text: str) -> bool:
    """Whether an address is public, and any address embedded in it as well."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return all(each.is_global and not each.is_multicast for each in _inside(address))


def _inside(address: Address) -> Iterable[Address]:
    yield from [address] if not isinstance(address, ipaddress.IPv6Address) else _of_version_6(address)


def _of_version_6(address: ipaddress.IPv6Address) -> Iterable[Address]:
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
        return
    yield address
    if address in _NAT64 or address in _COMPATIBLE:
        yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo


def resolve(host: str) -> list[str]:
    """The addresses of a host, as a connection would find them; empty if unknown."""
    try:
        entries = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(entry[4][0]) for entry in entries]


def guard_sockets(allowed: Iterable[str]) -> None:
    """Let this process connect to public addresses only, and to the hosts in ``allowed``.

    Each connection is checked when it is opened, which covers redirects and names that change their address.
    """
    permitted = frozenset(address for host in allowed for address in resolve(host))

    class GuardedSocket(socket.socket):
        def connect(self, address: Any) -> None:
            _check(self.family, address, permitted)
            super().connect(address)

        def connect_ex(self, address: Any) -> int:
            _check(self.family, address, permitted)
            return super().connect_ex(address)

    socket.socket = GuardedSocket  # type: ignore[misc]  # for every library of this process


def _check(family: int, address: Any, permitted: frozenset[str]) -> None:
    host = str(address[0]) if family in (socket.AF_INET, socket.AF_INET6) else str(address)
    if host not in permitted and not is_public(host):
        raise Unreachable(f"{host} is not a public address. The server's operator can allow it.")


def destination_of(send: Callable[[], object]) -> tuple[str, list[str]]:
    """Find where ``send`` would connect first, without connecting: the host's name and all its addresses.

    Each library parses addresses in its own way, so the send is started and stopped at its first connection.
    """
    names: list[str] = []
    reached: list[str] = []
    given_socket, given_lookup = socket.socket, socket.getaddrinfo

    def look_up(host: Any, *arguments: Any, **named: Any) -> Any:
        names.append(str(host.decode() if isinstance(host, bytes) else host))
        return given_lookup(host, *arguments, **named)

    class StoppedSocket(given_socket):  # type: ignore[misc, valid-type]  # guarded, or Python's own
        def connect(self, address: Any) -> None:
            reached.append(str(address[0] if isinstance(address, tuple) else address))
            raise _Connecting

        connect_ex = connect

    socket.socket, socket.getaddrinfo = StoppedSocket, look_up  # type: ignore[misc]  # for every library
    try:
        with suppress(_Connecting):
            send()
    finally:
        socket.socket, socket.getaddrinfo = given_socket, given_lookup  # type: ignore[misc]
    name = names[-1] if names else (reached[-1] if reached else "")
    return name, [*reached, *(resolve(name) if name else [])]
