"""berth secret: names are shown, values never."""

import getpass
import sys

from berth.cli.choosing import connect
from berth.cli.printing import remark, say, show_json
from berth.client import BerthError


def show_secrets(*, as_json: bool) -> None:
    names = connect().secrets()
    if as_json:
        show_json(names)
    elif names:
        say("\n".join(names))
    else:
        remark("No secrets yet. Store one with: berth secret set NAME")


def keep_secret(name: str, *, as_json: bool) -> None:
    """Store a value. It is never on the command line, where other people could read it.

    Raises:
        BerthError: there is no value, or the server refuses the name or the value.
    """
    value = getpass.getpass(f"Value of {name}: ") if sys.stdin.isatty() else sys.stdin.read().rstrip("\n")
    if not value:
        raise BerthError(f"No value for {name}; type it, or send it to standard input.")
    connect().keep_secret(name, value)
    if as_json:
        show_json({"stored": name})
    else:
        say(f"Stored {name}. Jobs get it with: berth run --secret {name} ...")


def drop_secret(name: str, *, as_json: bool) -> None:
    connect().forget_secret(name)
    if as_json:
        show_json({"forgotten": name})
    else:
        say(f"Deleted {name}; jobs that name it fail at their next start.")
