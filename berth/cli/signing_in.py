"""berth login and logout."""

import getpass
import os
import sys

from berth.cli.printing import remark, say, show_json
from berth.client import Berth, BerthError, login_path, save_login, tidy_url


def log_in(url: str | None, token: str | None, *, as_json: bool) -> None:
    """Check a token with its server and store it; ask for a missing one.

    Args:
        token: ``-`` reads it from standard input.
    """
    address = tidy_url(url) if url else Berth().url
    if token is None and sys.stdin.isatty():
        remark(f"Make a token at {address}/account (it is shown once) and paste it here.")
        token = getpass.getpass("Token: ")
    elif token is None or token == "-":  # noqa: S105  # stands for standard input
        token = sys.stdin.readline()
    if not token.strip():
        raise BerthError(f"No token; make one at {address}/account.")
    with Berth(address, token) as berth:
        person = berth.me()
    path = save_login(address, token.strip())
    if as_json:
        show_json({**person.json, "url": address})
        return
    say(f"Logged in at {address} as {person.username}; the token has the scope {person.scope}.")
    remark(f"Stored in {path}, which only you can read.")
    for name in ("BERTH_URL", "BERTH_TOKEN"):
        if os.environ.get(name):
            remark(f"{name} is set and overrides what is stored there.")


def log_out(*, as_json: bool) -> None:
    path = login_path()
    path.unlink(missing_ok=True)
    if as_json:
        show_json({"removed": str(path)})
    else:
        say(f"Deleted {path}. The token stays valid until you revoke it on your account page.")
