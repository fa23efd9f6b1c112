"""Reads as much of a deploy key as tells why ssh will not take it."""

import base64

_OPENSSH = "-----BEGIN OPENSSH PRIVATE KEY-----"
_MAGIC = b"openssh-key-v1\0"
_PLAIN = b"\0\0\0\x04none"  # the name of the cipher, after its length


def with_line_ends(key: str) -> str:
    """The key as ssh reads it: Windows' line ends are none to it, and the last line needs one."""
    lines = key.strip().replace("\r\n", "\n").replace("\r", "\n")
    return f"{lines}\n"


def has_passphrase(key: str) -> bool:
    """Whether a private key is encrypted; False for texts that are no key."""
    private = key.strip()
    if not private.startswith(_OPENSSH):
        head = private[:200]
        return "BEGIN ENCRYPTED PRIVATE KEY" in head or "Proc-Type: 4,ENCRYPTED" in head
    try:
        data = base64.b64decode("".join(private.splitlines()[1:-1]), validate=True)
    except ValueError:  # no base64, or letters beyond ASCII
        return False
    return data.startswith(_MAGIC) and not data.startswith(_MAGIC + _PLAIN)
