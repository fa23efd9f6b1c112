"""Root's doctor looks as the user whose state it is, and is root again for the steps of a cure alone.

What refuses a sandbox to an ordinary user, such as AppArmor, does not refuse it to root; and files that root writes into
the state would be closed to the server.
"""

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def become_owner(folder: Path) -> str | None:
    """Become the owner of a folder where this is root and the folder is another's; returns the owner's name.

    Programs that this process starts are the owner's for good; this process alone can be root again.
    """
    owner = folder.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        return None
    name, group = _account(owner)
    os.setgroups(os.getgrouplist(name, group))
    os.setresgid(group, group, 0)
    os.setresuid(owner.st_uid, owner.st_uid, 0)
    return name


def _account(owner: os.stat_result) -> tuple[str, int]:
    """Name and group; the number and the folder's group where this machine does not know the owner."""
    try:
        account = pwd.getpwuid(owner.st_uid)
    except KeyError:
        return str(owner.st_uid), owner.st_gid
    return account.pw_name, account.pw_gid


def can_be_root() -> bool:
    """Whether this is root, or was before it became an owner."""
    return 0 in os.getresuid()


@contextmanager
def root() -> Iterator[None]:
    """Be root for a while, where this process can."""
    users, groups = os.getresuid(), os.getresgid()
    if not can_be_root() or users[1] == 0:
        yield
        return
    os.setresuid(0, 0, 0)
    os.setresgid(0, 0, 0)
    try:
        yield
    finally:
        os.setresgid(*groups)
        os.setresuid(*users)
