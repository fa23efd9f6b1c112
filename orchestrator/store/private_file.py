"""Files that hold a key of this installation: made once, readable by their owner alone."""

import secrets
from collections.abc import Callable
from pathlib import Path


def read_or_create(path: Path, make: Callable[[], str]) -> str:
    """The text of the file at ``path``, made at first use; of several processes at once one makes it.

    Raises:
        OSError: it can be neither read nor made.
    """
    try:
        return path.read_text()
    except FileNotFoundError:
        pass
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    part.touch(mode=0o600)
    part.write_text(make())
    try:
        path.hardlink_to(part)  # unlike a rename, this leaves the key of a process that was first
    except FileExistsError:
        pass
    finally:
        part.unlink()
    return path.read_text()
