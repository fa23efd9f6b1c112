"""``python -m tests.deploy.lab``: a bare Debian with systemd becomes a lab's server by the commands of the lab page alone.

The machine is a fresh layer over a root that debootstrap made. With User Mode Linux it has a kernel of its own, which divides
control groups, so that jobs must reach level 2. Without, it runs in namespaces of this machine, whose port 8265 must be free,
and level 1 is enough. It refuses sandboxes in the way of Ubuntu's AppArmor until a profile is loaded. Needs root, debootstrap,
and where packages come from.
"""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.server import own_kernel, systemd
from tests.server.own_kernel import OwnKernel
from tests.server.systemd import CannotBoot, Machine, groups_for_systemd, running
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "run-for-a-lab.md"
BASE = Path("/var/cache/berth-lab/debian")  # kept for the next run; not in the tree, which is copied at times
PEOPLE = ("ana", "ben")
MOST_SHOWN = 6_000  # characters
BARE = "systemd-sysv,dbus,libpam-systemd,ca-certificates,sudo,iproute2"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Runs in new namespaces: a fresh layer over the base, what packages come from, and systemd.
_BOOT = r"""
set -e
work={work} root={work}/root
mount -t overlay overlay -o lowerdir={base},upperdir=$work/upper,workdir=$work/layer $root
for path in {binds}; do mkdir -p $root$path && mount --rbind $path $root$path; done
mount -t proc proc $root/proc
mount -t sysfs -o ro sysfs $root/sys
mount --rbind /dev $root/dev
mount -t tmpfs tmpfs $root/run
cp -L /etc/resolv.conf /etc/hosts $root/etc/
{groups}
for unit in systemd-udevd.service getty@.service console-getty.service systemd-sysctl.service systemd-binfmt.service \
  systemd-modules-load.service modprobe@.service systemd-remount-fs.service; do
  ln -sf /dev/null $root/etc/systemd/system/$unit
done
mkdir $root/around
cd $root
pivot_root . around  # in a folder that chroot made the root the kernel would refuse sandboxes
umount --lazy /around
exec env -i container=berth PATH=/usr/sbin:/usr/bin:/sbin:/bin {systemd} --unit=multi-user.target
"""
# In the words and the file of Ubuntu 24.04: no namespaces for a program without a profile that is loaded.
_REFUSAL = """
mkdir -p /run/refusal /etc/apparmor.d
mount -t tmpfs tmpfs /run/refusal
for file in /proc/sys/kernel/*; do [ -f $file ] && cat $file > /run/refusal/${file##*/} 2>/dev/null; done
cp -r /proc/sys/kernel/random /run/refusal/ 2>/dev/null
echo 1 > /run/refusal/apparmor_restrict_unprivileged_userns
mount --bind /run/refusal /proc/sys/kernel
cat > /usr/local/bin/bwrap <<'END'
#!/bin/sh
if [ -e /proc/sys/kernel/apparmor_restrict_unprivileged_userns ]; then
  echo "bwrap: setting up uid map: Permission denied" >&2
  exit 1
fi
exec /usr/bin/bwrap "$@"
END
cat > /usr/local/sbin/apparmor_parser <<'END'
#!/bin/sh
grep -q "userns," "$2" && umount /proc/sys/kernel
END
chmod 755 /usr/local/bin/bwrap /usr/local/sbin/apparmor_parser
"""


class NotALab(Exception):
    """A step did not do what the page promises."""


def blocks(text: str) -> list[str]:
    """The blocks of shell of the page: those of the server's administrator, and last the one of each person."""
    return re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def translated(block: str) -> str:
    """A block with the addresses of this machine in the place of the page's."""
    return block.replace("<address of the repository>", "/srv/berth.git").replace(
        "gpu1.example.org", "localhost"
    )


def make_base() -> None:
    """Install a bare Debian, once."""
    stamp = BASE / "ready"
    if stamp.exists() and stamp.read_text() == BARE:
        return
    shutil.rmtree(BASE, ignore_errors=True)
    BASE.parent.mkdir(parents=True, exist_ok=True)
    say("installing a bare Debian ...")
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={BARE}", "bookworm", BASE],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    stamp.write_text(BARE)


def say(text: str) -> None:
    sys.stdout.write(f"lab: {text}\n")
    sys.stdout.flush()


def prepare_layer(work: Path) -> list[Path]:
    """Give the machine the repository and this machine's sources of packages; returns the folders to show in it."""
    for name in ("root", "upper", "layer"):
        (work / name).mkdir()
    upper = work / "upper"
    (upper / "srv").mkdir()
    subprocess.run(
        ["git", "clone", "--quiet", "--bare", "--no-hardlinks", ROOT, upper / "srv/berth.git"], check=True
    )
    (upper / "etc/ssl/certs").mkdir(parents=True)
    if CERTIFICATES.exists():
        shutil.copy(CERTIFICATES, upper / "etc/ssl/certs")
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings = pip_settings(listed)
    with (upper / "etc/pip.conf").open("w") as file:
        settings.write(file)
    copy_files(settings["global"].values(), upper)
    return folders_of(settings["global"].values())


def pip_settings(listed: str) -> configparser.RawConfigParser:
    """The settings of pip for every user, from ``pip config list``."""
    settings = configparser.RawConfigParser()
    settings["global"] = {}
    for name, value in re.findall(r"^(?:global|install|:env:)\.([\w-]+)='(.*)'$", listed, re.MULTILINE):
        settings["global"][name] = value.replace("\\n", "\n")
    return settings


def folders_of(values: Iterable[str]) -> list[Path]:
    """The folders of this machine that settings of pip name, with what lies beside them."""
    return sorted({Path(*each.parts[:3]) for each in paths_of(values) if each.is_dir()})


def copy_files(values: Iterable[str], root: Path) -> None:
    """Copy the files that settings of pip name, such as constraints, to their own paths below a root."""
    for path in paths_of(values):
        if path.is_file():
            target = root / path.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


def paths_of(values: Iterable[str]) -> list[Path]:
    return [Path(each) for each in re.findall(r"(?:file://|(?<=\s)|^)(/\S+)", " ".join(values))]


@contextmanager
def booted_in_namespaces(work: Path) -> Iterator[Machine]:
    script = _BOOT.format(
        work=shlex.quote(str(work)),
        base=shlex.quote(str(BASE)),
        binds=" ".join(shlex.quote(str(each)) for each in prepare_layer(work)),
        groups=groups_for_systemd(),
        systemd=systemd.SYSTEMD,
    )
    with running(script, work / "boot.log") as machine:
        wait_until(lambda: machine.run("systemctl", "is-active", "dbus.service").returncode == 0)
        yield machine


def do(machine: Machine | OwnKernel, *command: str) -> str:
    """Run a command in the machine and say what it took; raises with its output where it fails."""
    began = time.monotonic()
    done = machine.run(*command)
    shown = done.stdout + done.stderr
    if done.returncode:
        raise NotALab(f"exit status {done.returncode} of\n{command[-1]}\n{shown[-MOST_SHOWN:]}")
    say(f"{time.monotonic() - began:.0f} s for\n{command[-1].strip()}\n")
    return shown


def set_up(machine: Machine | OwnKernel) -> None:
    """Everything that the page asks of the administrator, in one terminal's folder."""
    machine.run("sh", "-c", _REFUSAL)
    folder = "/"
    for block in blocks(PAGE.read_text())[:-1]:
        shown = do(machine, "sh", "-c", f"set -ex; cd {folder}\n{translated(block)}")
        folder = next((line[3:] for line in block.splitlines() if line.startswith("cd ")), folder)
        if "doctor" in block and not re.search(r"Sandbox level [12]", shown):
            raise NotALab(f"no sandbox after\n{block}\n{shown}")


def work_as(machine: Machine | OwnKernel, name: str) -> int:
    """What the page asks of a person; returns the sandbox level of the job."""
    do(machine, "useradd", "--create-home", "--shell", "/bin/bash", name)
    manage = "cd /opt/berth && sudo --user berth --set-home .venv/bin/python manage.py token %s --name laptop"
    token = re.findall(r"\bberth_\S+", do(machine, "sh", "-c", manage % name))[-1]
    block = translated(blocks(PAGE.read_text())[-1])
    lines = [f"echo {token} | {line}" if " login " in line else line for line in block.splitlines()]
    path = "PATH=/opt/berth/.venv/bin:/usr/bin:/bin"
    person = ("runuser", "-u", name, "--", "env", f"HOME=/home/{name}", path, "sh", "-c")
    do(machine, *person, "\n".join(["set -e; cd", *lines]))
    shown = do(machine, *person, "berth show --json")
    found = re.search(r'"sandbox":\s*\{\s*"level":\s*(\d)', shown)
    if found is None or not re.search(r'"state":\s*"succeeded"', shown):
        raise NotALab(f"the job of {name} did not succeed in a sandbox:\n{shown}")
    return int(found.group(1))


def levels_on(machine: Machine | OwnKernel) -> dict[str, int]:
    """Follow the page; returns each person's sandbox level, and nobody's where a step failed."""
    try:
        set_up(machine)
        return {name: work_as(machine, name) for name in PEOPLE}
    except NotALab as problem:
        say(str(problem))
        say(machine.run("journalctl", "--no-pager", "--lines", "60", "--unit", "berth-*").stdout)
        return {}


def main() -> int:
    reason = systemd.missing() or (None if shutil.which("debootstrap") else "debootstrap is not installed")
    if reason:
        say(f"{reason}.")
        return 2
    make_base()
    without_kernel = own_kernel.missing()
    if without_kernel:
        say(f"{without_kernel}: without a kernel of its own, the machine's jobs can reach level 1.")
    needed = 1 if without_kernel else 2
    work = Path(tempfile.mkdtemp(prefix="berth-lab-", dir=BASE.parent))
    try:
        start = (
            booted_in_namespaces(work)
            if without_kernel
            else own_kernel.booted(work, BASE, prepare_layer(work))
        )
        with start as machine:
            levels = levels_on(machine)
    except CannotBoot as error:
        say(str(error))
        return 2
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if not levels:
        return 1
    say(f"two people's jobs ran at sandbox levels {levels}; level {needed} is needed")
    return 0 if min(levels.values()) >= needed else 1


if __name__ == "__main__":
    sys.exit(main())
