"""A small machine with a kernel of its own, User Mode Linux, and a real systemd as its pid 1.

Its kernel has all controllers of control groups in version 2, whatever this machine does with its own.
"""

import os
import platform
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.server.systemd import CannotBoot
from tests.waiting import PATIENCE_S, wait_until

KERNEL, NETWORK = "linux.uml", "slirp-fullbolt"
PACKAGES = "user-mode-linux slirp"
_NEEDS = (KERNEL, NETWORK, "mke2fs", "unshare")
_MEMORY, _DISK = "4G", "16G"  # both are taken as they are used
_ASKS_EVERY_S = 0.1
_RESOLVER = "nameserver 10.0.2.3\n"  # slirp's, which asks this machine's
_UNIT = """
[Unit]
After=dbus.service
[Service]
ExecStartPre=/bin/mkdir -p /exchange {folders}
ExecStartPre=/sbin/ip address add 10.0.2.15 peer 10.0.2.2 dev eth0
ExecStartPre=/sbin/ip link set eth0 up
ExecStartPre=/sbin/ip route add default via 10.0.2.2
ExecStartPre=/bin/mount -t hostfs none /exchange -o {exchange}
{mounts}
ExecStart=/bin/sh /usr/local/sbin/carry-out
"""
# Commands come as files, for no terminal or network of the machine need be up to take them.
_CARRY_OUT = """
cd /exchange
while :; do
  for todo in *.todo; do
    [ -e "$todo" ] || continue
    name=${todo%.todo}
    mv "$todo" "$name.begun"
    (cd / && env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin sh "/exchange/$name.begun") >"$name.out" 2>"$name.err" </dev/null
    echo $? >"$name.ending"
    mv "$name.ending" "$name.ended"
  done
  sleep 0.1
done
"""
# A disk with a layer over the base as its content; made in a namespace, so that the layer is mounted for nobody else.
_DISK_OF_LAYER = r"""
set -e
mount -t overlay overlay -o lowerdir={base},upperdir={work}/upper,workdir={work}/layer {work}/root
mke2fs -q -t ext4 -d {work}/root {work}/disk {size}
"""


def missing() -> str | None:
    """What this machine lacks for such a machine; None if it has all."""
    absent = [name for name in _NEEDS if shutil.which(name) is None]
    return f"{', '.join(absent)} not found (Debian: {PACKAGES})" if absent else None


class OwnKernel:
    """The running machine."""

    def __init__(self, exchange: Path, kernel: "subprocess.Popen[bytes]") -> None:
        self._exchange, self._kernel, self._commands = exchange, kernel, 0

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in the machine as its root."""
        self._commands += 1
        place = self._exchange / str(self._commands)
        place.with_suffix(".new").write_text(shlex.join(command) + "\n")
        place.with_suffix(".new").rename(place.with_suffix(".todo"))
        while not place.with_suffix(".ended").exists():
            if self._kernel.poll() is not None:
                raise CannotBoot(f"the machine ended while it ran {command[0]}")
            time.sleep(_ASKS_EVERY_S)
        status, out, err = (
            place.with_suffix(suffix).read_text(errors="replace") for suffix in (".ended", ".out", ".err")
        )
        return subprocess.CompletedProcess(command, int(status), out, err)


@contextmanager
def booted(work: Path, base: Path, binds: Sequence[Path]) -> Iterator[OwnKernel]:
    """Boot a machine from the layer ``work/upper`` over a base; it shows these folders of ours at their own paths.

    Raises:
        CannotBoot: the kernel ended.
    """
    exchange = work / "exchange"
    exchange.mkdir(mode=0o700)
    _write_units(work / "upper", exchange, binds)
    script = _DISK_OF_LAYER.format(work=work, base=base, size=_DISK)
    subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-c", script], check=True)
    command = [KERNEL, f"mem={_MEMORY}", f"ubd0={work}/disk", "root=/dev/ubda", "rootfstype=ext4", "rw"]
    command += [f"eth0=slirp,,{shutil.which(NETWORK)}", "con=null", "con0=null,fd:1", "quiet"]
    command += ["systemd.unit=multi-user.target"]
    names = ["unshare", "--pid", "--fork", "--kill-child"]  # its processes are ours, and end with it
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else str(work)  # noqa: S108 -- where memory is a file
    with (work / "boot.log").open("w") as log:
        kernel = subprocess.Popen(
            [*names, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "HOME": str(work), "TMPDIR": memory},
        )
    try:
        machine = OwnKernel(exchange, kernel)
        wait_until(lambda: machine.run("systemctl", "is-active", "dbus.service").returncode == 0, PATIENCE_S)
        yield machine
    finally:
        kernel.kill()
        kernel.wait()


def _write_units(upper: Path, exchange: Path, binds: Sequence[Path]) -> None:
    """Let the machine have a network, the folders, and a service that carries out our commands."""
    units, wanted = upper / "etc/systemd/system", "multi-user.target.wants"
    (units / wanted).mkdir(parents=True, exist_ok=True)
    (upper / "etc/resolv.conf").write_text(_RESOLVER)
    (upper / "etc/hosts").write_text(f"127.0.0.1 localhost {platform.node()}\n")
    (upper / "etc/dpkg/dpkg.cfg.d").mkdir(parents=True)
    (upper / "etc/dpkg/dpkg.cfg.d/in-a-hurry").write_text("force-unsafe-io\n")  # the disk is thrown away
    (upper / "usr/local/sbin").mkdir(parents=True)
    (upper / "usr/local/sbin/carry-out").write_text(_CARRY_OUT)
    mounts = "\n".join(f"ExecStartPre=/bin/mount -t hostfs none {path} -o {path}" for path in binds)
    folders = " ".join(map(str, binds))
    (units / "carry-out.service").write_text(_UNIT.format(folders=folders, exchange=exchange, mounts=mounts))
    (units / wanted / "carry-out.service").symlink_to("../carry-out.service")
    for name in ("systemd-udevd.service", "getty@.service", "console-getty.service"):
        (units / name).symlink_to("/dev/null")
