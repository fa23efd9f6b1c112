"""File systems whose files are the kernel's answers, not data: ``/proc``, ``/sys`` and their like."""

import functools
import os
import time
from pathlib import Path

# By their names in /proc/self/mountinfo (proc(5)). Those that hold what somebody wrote are not among them.
KERNEL_TYPES = frozenset(
    [
        *("proc", "sysfs", "cgroup", "cgroup2", "cpuset", "resctrl"),
        *("devtmpfs", "devpts", "mqueue", "binfmt_misc", "nsfs", "sockfs", "pipefs"),
        *("debugfs", "tracefs", "securityfs", "selinuxfs", "smackfs", "configfs", "bpf"),
        *("pstore", "efivarfs", "fusectl", "rpc_pipefs", "nfsd", "xenfs", "ocfs2_dlmfs"),
    ]
)
_MOUNTS = Path("/proc/self/mountinfo")


def kernel_devices() -> dict[int, str]:
    """The type of each such file system that is mounted here, by the device number of its files.

    Links and bind mounts hide a path, not this number.
    """
    return _read_mounts(int(time.monotonic()))


@functools.lru_cache(maxsize=1)
def _read_mounts(_second: int) -> dict[int, str]:
    """At most once a second: a list of datasets asks for each, and a host with containers has thousands of mounts."""
    found = {}
    for line in _MOUNTS.read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        kind = after.split(" ", 1)[0]
        if kind in KERNEL_TYPES:
            major, _, minor = before.split(" ")[2].partition(":")
            found[os.makedev(int(major), int(minor))] = kind
    return found
