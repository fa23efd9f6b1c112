"""Where a folder lies, on a disk of this machine or on the network, and who may enter it."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
# By their names in /proc/self/mountinfo.  Locks and shared memory work there between one machine's processes at best.
NETWORK_TYPES = frozenset(
    [
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "glusterfs", "beegfs", "gpfs", "afs", "9p"),
        *("panfs", "pvfs2", "orangefs", "davfs", "coda", "ncpfs", "wekafs"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.s3fs", "fuse.rclone", "fuse.juicefs"),
        *("fuse.mfs", "fuse.gcsfuse", "fuse.goofys", "fuse.blobfuse", "fuse.blobfuse2", "fuse.mount-s3", "fuse.curlftpfs"),
        *("fuse.smbnetfs", "fuse.davfs2", "fuse.seaweedfs", "fuse.cvmfs2", "fuse.quobyte", "fuse.rozofs"),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system."""

    point: Path
    kind: str

    @property
    def is_network(self) -> bool:
        return self.kind in NETWORK_TYPES


def mount_of(path: Path) -> Mount:
    """The file system of a path, which need not exist yet."""
    path = Path(os.path.realpath(path))
    found = Mount(Path("/"), "")
    for mount in _read_mounts():
        if path.is_relative_to(mount.point) and len(mount.point.parts) >= len(found.point.parts):
            found = mount  # of two at one place the later one covers the earlier
    return found


def _read_mounts() -> list[Mount]:
    mounts = []
    for line in MOUNTS.read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split(" ")[4])
        mounts.append(Mount(Path(point), after.split(" ", 1)[0]))
    return mounts


def network_trap(path: Path) -> str:
    """What decides on the network who may read a path; empty for a path on a disk of this machine."""
    mount = mount_of(path)
    if not mount.is_network:
        return ""
    try:
        status = path.stat()
        owners = f" (user {status.st_uid}, group {status.st_gid})"
    except OSError:
        owners = ""
    groups = ", ".join(str(group) for group in sorted({os.getegid(), *os.getgroups()}))
    return (
        f" It lies on the network ({mount.kind} at {mount.point}), whose server compares numbers, not names{owners}, "
        f"and takes root for nobody (root_squash). Berth runs as user {os.geteuid()} in groups {groups}."
    )
