"""Which headers cross the proxy: Berth's credentials never reach a session, and a session cannot set Berth's cookies."""

from collections.abc import Iterable, Iterator

Headers = list[tuple[bytes, bytes]]

COOKIE = "berth_door"  # of the pass, at the session's own address
BROWSER_COOKIE = "berth_door_begin"  # until the ticket comes
_BETWEEN_TWO = frozenset(
    [
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    ]
)
# Credentials for Berth, and what a proxy in front of us says.
_NOT_UPSTREAM = frozenset(
    [
        b"authorization",
        b"cookie",
        b"expect",
        b"forwarded",
        b"host",
        b"x-csrftoken",
        b"x-real-ip",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-prefix",
        b"x-forwarded-proto",
    ]
)
_OF_SOCKETS = b"sec-websocket-"
# They would reach beyond the session's own paths; the date is our server's own.
_NOT_TO_BROWSER = frozenset(
    [
        b"date",
        b"strict-transport-security",
        b"clear-site-data",
        b"service-worker-allowed",
        b"public-key-pins",
        b"alt-svc",
    ]
)
_OWN_COOKIES = ("berth_", "__host-berth_", "__secure-berth_", "messages", "sessionid", "csrftoken")


class Smuggled(Exception):
    """The length of a body is given twice or ambiguously; the text says how."""


def values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for key, value in headers if key.lower() == name]


def cookies_named(headers: Headers, name: str) -> list[str]:
    """Every cookie of this name; browsers send several if a neighbouring address set one too."""
    return [value for key, value in _cookies(headers) if key == name]


def _cookies(headers: Headers) -> Iterator[tuple[str, str]]:
    for line in values(headers, b"cookie"):
        for part in line.decode("latin-1").split(";"):
            name, equals, value = part.strip().partition("=")
            if equals:
                yield name, value


def _is_berths(cookie: str) -> bool:
    return cookie.strip().lower().startswith(_OWN_COOKIES)


def check_framing(headers: Headers) -> None:
    """Refuse requests that could end at different places for two programs.

    Raises:
        Smuggled: both lengths, two lengths, or an encoding other than chunked.
    """
    lengths, encodings = values(headers, b"content-length"), values(headers, b"transfer-encoding")
    if lengths and encodings:
        raise Smuggled("Send Content-Length or Transfer-Encoding, not both.")
    if len(lengths) > 1 or any(not length.isdigit() or len(length) > 18 for length in lengths):
        raise Smuggled("Send one Content-Length, a plain number.")
    if encodings and [encoding.strip().lower() for encoding in encodings] != [b"chunked"]:
        raise Smuggled("The only Transfer-Encoding that is understood is chunked.")


def to_program(headers: Headers, host: str, scheme: str) -> Headers:
    """The headers of a request as the session's program gets them."""
    dropped = _BETWEEN_TWO | _NOT_UPSTREAM | _named_by_connection(headers)
    kept = [
        (name, value.strip(b" \t"))
        for name, value in headers
        if name.lower() not in dropped and not name.lower().startswith(_OF_SOCKETS)
    ]
    cookies = "; ".join(f"{name}={value}" for name, value in _cookies(headers) if not _is_berths(name))
    return [
        (b"host", host.encode("ascii")),
        (b"x-forwarded-proto", scheme.encode()),
        *kept,
        *([(b"cookie", cookies.encode("latin-1"))] if cookies else []),
    ]


def to_browser(headers: Headers, base: str) -> Headers:
    """The headers of an answer as the browser gets them."""
    dropped = _BETWEEN_TWO | _NOT_TO_BROWSER | _named_by_connection(headers)
    kept: Headers = []
    for name, value in headers:
        if name.lower() == b"set-cookie":
            kept += [(b"set-cookie", cookie) for cookie in _own_cookie(value, base)]
        elif name.lower() not in dropped:
            kept.append((name.lower(), value))
    if not values(kept, b"referrer-policy"):
        kept.append((b"referrer-policy", b"same-origin"))
    return kept


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    named = b",".join(values(headers, b"connection"))
    return frozenset(name.strip().lower() for name in named.split(b",")) - {
        b"",
        b"content-length",
        b"content-type",
    }


def _own_cookie(line: bytes, base: str) -> list[bytes]:
    """A cookie of the session, kept to its own name and paths; none where it is named like one of Berth's."""
    first, *attributes = line.split(b";")
    if _is_berths(first.partition(b"=")[0].decode("latin-1")):
        return []
    kept = [
        each for each in attributes if each.strip().lower().partition(b"=")[0] not in (b"domain", b"path")
    ]
    path = next((each.partition(b"=")[2].strip() for each in attributes if _is_path(each)), b"")
    wide = not path.startswith(base.rstrip("/").encode() + b"/")
    return [b";".join([first, *kept, b" Path=" + (base.encode() if wide else path)])]


def _is_path(attribute: bytes) -> bool:
    return attribute.strip().lower().startswith(b"path=")
