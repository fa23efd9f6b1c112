"""Which server, and the token that `berth login` stored."""

import json
import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from berth.client.downloads import whole_file
from berth.client.errors import BerthError

DEFAULT_URL = "http://localhost:8265"


def login_path() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "berth" / "login.json"


def read_login() -> dict[str, str]:
    """Read the url and token that `berth login` stored; empty before the first login.

    Raises:
        BerthError: the file is there and cannot be read.
    """
    path = login_path()
    try:
        login = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BerthError(f"{path} cannot be read ({error}); remove it and run: berth login") from error
    if not isinstance(login, dict):
        raise BerthError(f"{path} is not a login of Berth; remove it and run: berth login")
    return {name: str(value) for name, value in login.items()}


def save_login(url: str, token: str) -> Path:
    """Store a login in a file that only its owner can read."""
    path = login_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with whole_file(path) as file:  # made with mode 0600
        file.write(json.dumps({"url": tidy_url(url), "token": token}).encode())
    return path


def tidy_url(url: str) -> str:
    """Normalise a server's address: ``scheme://host:port`` with its path, without a final slash.

    Raises:
        BerthError: the text is no address.
    """
    text = url.strip()
    text = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(text)
        named = re.fullmatch(r"[\w.:%-]+", parts.hostname or "")  # colons as in IPv6
        valid = parts.scheme in {"http", "https"} and named is not None and parts.port != 0
    except ValueError:  # a port that is no number, half a bracket
        valid = False
    if not valid or parts.query or parts.fragment or parts.username is not None:
        raise BerthError(f"{url!r} is not the address of a server; give one such as http://gpu-box:8265.")
    return text.rstrip("/").removesuffix("/api/v1")
