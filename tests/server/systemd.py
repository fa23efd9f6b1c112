"""A small machine with a real systemd as its pid 1, in namespaces of this one."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.waiting import PATIENCE_S, wait_until

SYSTEMD = Path("/lib/systemd/systemd")
_NEEDS = ("unshare", "nsenter", "setpriv", "systemd-run", "dbus-daemon", "chroot")
_ETC = (
    "nsswitch.conf",
    "ld.so.cache",
    "alternatives",
    "pam.d",
    "dbus-1",
    "security",
    "login.defs",
    "python3*",
)
_GROUPS = Path("/sys/fs/cgroup")
# Runs in new namespaces: builds a root from this machine's /usr, and becomes systemd in it.
_BOOT = r"""
set -e
root={root}
mount -t tmpfs tmpfs $root
for name in bin sbin lib lib32 lib64 libx32; do if [ -L /$name ]; then cp -a /$name $root/; fi; done
mkdir -p $root/usr $root/etc/systemd/system $root/var/log $root/var/lib/systemd/linger $root/var/tmp $root/root $root/tmp
mkdir -p $root/run $root/proc $root/sys $root/dev $root/home
mount --rbind /usr $root/usr
for path in {etc}; do if [ -e $path ]; then cp -a $path $root/etc/; fi; done
cp /etc/passwd /etc/group $root/etc/
echo '{user}:x:{uid}:{uid}::/home/{user}:/bin/sh' >> $root/etc/passwd
echo '{user}:x:{uid}:' >> $root/etc/group
echo '{user}:*:20000:0:99999:7:::' > $root/etc/shadow
mkdir $root/home/{user} && chown {uid}:{uid} $root/home/{user} && touch $root/var/lib/systemd/linger/{user}
echo 0123456789abcdef0123456789abcdef > $root/etc/machine-id
for path in {binds}; do mkdir -p $root$path && mount --rbind $path $root$path; done
mount -t proc proc $root/proc
mount --bind $root/proc/sys $root/proc/sys && mount -o remount,bind,ro $root/proc/sys
mount -t sysfs -o ro sysfs $root/sys
mount --rbind /dev $root/dev
mount -t tmpfs tmpfs $root/run
{groups}
printf '[Unit]\nRequires=basic.target dbus.service systemd-logind.service\nAfter=basic.target dbus.service systemd-logind.service\n' > $root/etc/systemd/system/machine.target
for unit in systemd-udevd.service getty@.service console-getty.service systemd-sysctl.service systemd-binfmt.service \
  systemd-modules-load.service modprobe@.service systemd-remount-fs.service; do
  ln -s /dev/null $root/etc/systemd/system/$unit
done
exec chroot $root env -i container=berth PATH=/usr/sbin:/usr/bin:/sbin:/bin {systemd} --unit=machine.target
"""
_VERSION_2 = "mount -t cgroup2 cgroup2 $root/sys/fs/cgroup"
_HYBRID = """
mount -t tmpfs tmpfs $root/sys/fs/cgroup
mkdir $root/sys/fs/cgroup/systemd $root/sys/fs/cgroup/unified
mount -t cgroup -o none,name=systemd cgroup $root/sys/fs/cgroup/systemd
mount -t cgroup2 cgroup2 $root/sys/fs/cgroup/unified
"""


class CannotBoot(Exception):
    """No package would help: the machine ended at its start."""


def missing() -> str | None:
    """What this machine lacks for such a machine; None if it has all."""
    if os.geteuid() != 0:
        return "a machine of its own needs root"
    absent = [name for name in _NEEDS if shutil.which(name) is None]
    if not SYSTEMD.exists() or absent:
        return f"systemd or {', '.join(absent) or 'dbus'} is not installed"
    return None


class Machine:
    """The running machine; a user with a lingering manager is there."""

    user, uid = "machinist", 64_021

    def __init__(self, pid: int) -> None:
        self._pid = pid  # of its systemd

    def run(self, *command: str, as_user: bool = False) -> subprocess.CompletedProcess[str]:
        enter = ["nsenter", "-t", str(self._pid), "-m", "-p", "-C", "-u", "-i", "-r", "-w", "env", "-i"]
        enter += ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        if as_user:
            who = str(self.uid)
            enter += [f"XDG_RUNTIME_DIR=/run/user/{who}", "setpriv", "--reuid", who, "--regid", who]
            enter += ["--clear-groups"]
        return subprocess.run([*enter, *command], capture_output=True, text=True, check=False)

    def is_up(self) -> bool:
        return self.run("systemctl", "is-active", f"user@{self.uid}.service").stdout.strip() == "active"

    def write_unit(self, name: str, text: str) -> None:
        (Path(f"/proc/{self._pid}/root/etc/systemd/system") / name).write_text(text)
        self.run("systemctl", "daemon-reload")


@contextmanager
def booted(root: Path, binds: Sequence[Path]) -> Iterator[Machine]:
    """Boot a machine that shows these folders of ours at their own paths; ends with everything in it."""
    script = _BOOT.format(
        root=shlex.quote(str(root)),
        etc=" ".join(f"/etc/{name}" for name in _ETC),
        user=Machine.user,
        uid=Machine.uid,
        binds=" ".join(shlex.quote(str(path)) for path in binds),
        groups=groups_for_systemd(),
        systemd=SYSTEMD,
    )
    with running(script, root.parent / "boot.log") as machine:
        wait_until(machine.is_up, PATIENCE_S, (root.parent / "boot.log").read_text)
        yield machine


@contextmanager
def running(script: str, boot_log: Path) -> Iterator[Machine]:
    """Run a script in new namespaces that ends by becoming systemd; ends with everything in it."""
    groups = list(_own_groups(f"berth-machine-{os.getpid()}"))
    with boot_log.open("w") as log:
        for group in groups:
            group.mkdir()
        join = [f"echo $$ > {shlex.quote(str(group))}/cgroup.procs" for group in groups]
        names = "--mount --pid --cgroup --uts --ipc --fork --kill-child --propagation private"
        start = f"{'; '.join(join)}; exec unshare {names} sh -c {shlex.quote(script)}"
        outer = subprocess.Popen(["sh", "-c", start], stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: _systemd(outer) is not None, PATIENCE_S, boot_log.read_text)
        yield Machine(_systemd(outer) or 0)
    finally:
        outer.kill()
        outer.wait()
        wait_until(lambda: all(map(_removed, groups)), PATIENCE_S)


def groups_for_systemd() -> str:
    """Commands that mount the control groups a systemd at ``$root`` needs."""
    return _VERSION_2 if (_GROUPS / "cgroup.controllers").exists() else _HYBRID


def _systemd(outer: "subprocess.Popen[bytes]") -> int | None:
    """The pid of the machine's systemd here; None while its root is still being built."""
    if outer.poll() is not None:
        raise CannotBoot("this kernel lets no systemd boot in namespaces")
    with suppress(OSError, ValueError):
        pid = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text())
        if Path(f"/proc/{pid}/exe").resolve().name == "systemd":
            return pid
    return None


def _own_groups(name: str) -> Iterator[Path]:
    """A group below that of this process, in each hierarchy."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        unified = "" if (_GROUPS / "cgroup.controllers").exists() else "unified"
        folder = _GROUPS / (controllers.removeprefix("name=") or unified) / path.lstrip("/")
        if folder.is_dir() and controllers != "cpuset":  # a new one has no processor, and takes no process
            yield folder / name


def _removed(group: Path) -> bool:
    for folder, _, _ in os.walk(group, topdown=False):
        with suppress(OSError):  # a process of it is still ending
            Path(folder).rmdir()
    return not group.exists()
