"""``python -m tests.deploy.containers``: build the images, start the compose file, and run two people's jobs in it.

Podman does what Docker does: a small command ``docker`` carries out the very lines of the install page, in a clone of this
repository. Where no registry of images answers, stand-ins of Debian's packages take the place of the images that ours are
built on. Images are kept for the next run. Needs root, podman, and where packages come from.
"""

import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import yaml

from tests.deploy.lab import BASE, PEOPLE, copy_files, folders_of, make_base, pip_settings, say
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "install.md"
STAND_INS = Path(__file__).with_name("stand_ins")
KEPT = Path("/var/cache/berth-containers")  # images, for the next run
PODMAN_COMPOSE = "podman-compose==1.6.0"
PROJECT = "berth-trial"
DEBIANS_POSTGRES = "15"
PORT, SESSIONS_PORT = 18265, 18266
MOST_SHOWN = 6_000  # characters
MOST_PROCESSES = 4096  # of one user; Podman lowers its own limit below this machine's, and cannot go back
_NEEDS = ("podman", "git", "uv")
_FOLDERS_OF_INIT = ("/usr/libexec/podman", "/usr/bin", "/usr/local/bin")
_RAISES_LIMITS = 1 << 24  # CAP_SYS_RESOURCE
# A dependency that ended well makes Podman 4.3 refuse to start what needs it; podman-compose keeps the order by itself.
_PODMAN = """#!/bin/bash
for each; do
  shift
  case $each in --requires=*) ;; *) set -- "$@" "$each" ;; esac
done
exec podman --root {kept}/storage --runroot /run/berth-containers "$@"
"""
_DOCKER = """#!/bin/bash
shift
if [ "$1" = exec ]; then shift; set -- exec -T "$@"; fi
exec {uv} tool run --quiet {compose} --podman-path {podman} --in-pod false --parallel 1 --project-name {project} \\
  --podman-build-args={build} --file docker-compose.yml --file {override} "$@"
"""


class NotStarted(Exception):
    """A step did not do what the page promises."""


def missing() -> str | None:
    """What this machine lacks to build and run containers; None if it has all."""
    if os.geteuid() != 0:
        return "building containers apart from a person's own needs root"
    absent = [name for name in _NEEDS if shutil.which(name, path=search_path()) is None]
    if not any(Path(folder, "catatonit").exists() for folder in _FOLDERS_OF_INIT):
        absent.append("catatonit (Podman's init of containers)")
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists() and shutil.which("runc") is None:
        absent.append("runc (crun refuses version 1 of control groups)")
    return f"{', '.join(absent)} is not installed" if absent else None


def search_path() -> str:
    return f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def blocks(text: str) -> tuple[str, str]:
    """What the page's section on containers tells an administrator: to start the set, and to add a person."""
    section = text.partition("\n## In containers\n")[2].partition("\n## ")[0]
    first, person = (
        each for each in re.findall(r"^```sh\n(.*?)^```", section, re.S | re.M) if "docker" in each
    )
    return first, person


def for_person(block: str, name: str) -> str:
    """The page's lines about ana, for another person."""
    return re.sub(r"\bana\b", name, block)


def limits() -> dict[str, int]:
    """The limits that containers get here where this machine may not raise its own; empty where it may."""
    status = Path("/proc/self/status").read_text()
    (effective,) = re.findall(r"^CapEff:\s*(\w+)$", status, re.MULTILINE)
    if int(effective, 16) & _RAISES_LIMITS:
        return {}
    names = {
        "memlock": resource.RLIMIT_MEMLOCK,
        "nofile": resource.RLIMIT_NOFILE,
        "nproc": resource.RLIMIT_NPROC,
    }
    hard = {name: resource.getrlimit(number)[1] for name, number in names.items()}
    return {**hard, "nproc": min(hard["nproc"], MOST_PROCESSES)}


class Engine:
    """Podman with a storage of its own, and the command ``docker`` over it, in a folder that is put on PATH."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.tree = work / "berth"
        (work / "bin").mkdir()
        self._configuration = work / "containers.conf"
        self._configuration.write_text(_configuration())
        self._write("podman-here", _PODMAN.format(kept=KEPT))
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, self.tree], check=True)

    def _write(self, name: str, text: str) -> None:
        program = self.work / "bin" / name
        program.write_text(text)
        program.chmod(0o755)

    def podman(self, *command: str, stdin: int | None = None, check: bool = True) -> str:
        return self._run([str(self.work / "bin/podman-here"), *command], {}, stdin=stdin, check=check)

    def shell(self, script: str, settings: Mapping[str, str]) -> str:
        """Run lines of the page in the clone."""
        return self._run(["bash", "-exc", script], settings)

    def _run(
        self,
        command: list[str],
        settings: Mapping[str, str],
        *,
        stdin: int | None = None,
        check: bool = True,
    ) -> str:
        path = f"{self.work / 'bin'}:{search_path()}"
        environment = {
            **os.environ,
            "PATH": path,
            "CONTAINERS_CONF": str(self._configuration),
            **settings,
        }
        done = subprocess.run(
            command,
            cwd=self.tree,
            env=environment,
            stdin=stdin or subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise NotStarted(
                f"exit status {done.returncode} of\n{shlex.join(command)}\n"
                f"{done.stdout[-MOST_SHOWN:]}\n{done.stderr[-MOST_SHOWN:]}"
            )
        return done.stderr + done.stdout  # what a command answers comes last

    def write_docker(self, build: list[str]) -> None:
        override = self.work / "override.yml"
        limited = {"services": {"runner": {"ulimits": limits()}}} if limits() else {"services": {}}
        override.write_text(yaml.safe_dump(limited))
        self._write(
            "docker",
            _DOCKER.format(
                uv=shutil.which("uv", path=search_path()),
                compose=PODMAN_COMPOSE,
                podman=self.work / "bin/podman-here",
                project=PROJECT,
                build=shlex.quote(shlex.join(build)),
                override=override,
            ),
        )


def _configuration() -> str:
    """Podman's own settings: the limits it may set, and a runtime that knows this machine's control groups."""
    given = ", ".join(f'"{name}={value}:{value}"' for name, value in limits().items())
    lines = ["[containers]", *([f"default_ulimits = [{given}]"] if given else [])]
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists() and shutil.which("runc"):
        lines += ["[engine]", 'runtime = "runc"']  # crun refuses version 1 and 2 beside each other
    return "\n".join(lines) + "\n"


def has_registry(engine: Engine) -> bool:
    return "Error" not in engine.podman("pull", "--quiet", "docker.io/library/redis:7-alpine", check=False)


def make_stand_ins(engine: Engine) -> list[str]:
    """Make what ours are built on from Debian's packages; returns the options of builds on them."""
    make_base()
    say("making stand-ins of the images python, redis and postgres ...")
    if "localhost/debian" not in engine.podman("images", "--format", "{{.Repository}}"):
        archive = subprocess.Popen(["tar", "-C", BASE, "-c", "."], stdout=subprocess.PIPE)
        assert archive.stdout is not None
        engine.podman("import", "-", "localhost/debian", stdin=archive.stdout.fileno())
        archive.wait()
    context = engine.work / "stand_ins"
    shutil.copytree(STAND_INS, context)
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings = pip_settings(listed)
    (context / "files/etc").mkdir(parents=True)
    with (context / "files/etc/pip.conf").open("w") as file:
        settings.write(file)
    copy_files(settings["global"].values(), context / "files")
    tags = {
        "python": "python:3.11-slim-bookworm",
        "redis": "redis:7-alpine",
        "postgres": f"postgres:{DEBIANS_POSTGRES}-alpine",
    }
    version = f"POSTGRES_MAJOR={DEBIANS_POSTGRES}"
    for target, tag in tags.items():
        options = ("--pull-never", "--build-arg", version, "--target", target)
        engine.podman("build", *options, "--tag", f"docker.io/library/{tag}", str(context))
    folders = folders_of(settings["global"].values())
    return ["--pull-never", *(f"--volume={folder}:{folder}:ro" for folder in folders)]


def start(engine: Engine, settings: Mapping[str, str]) -> None:
    """Do what the page says, and wait until every service tells that it works."""
    began = time.monotonic()
    first, _ = blocks(PAGE.read_text())
    shown = engine.shell(first, settings)
    if "First admin:" not in shown:
        raise NotStarted(f"no password of a first admin:\n{shown[-MOST_SHOWN:]}")
    for service in ("redis", "postgres", "web", "runner"):
        wait_until_healthy(engine, f"{PROJECT}_{service}_1")
    say(f"{time.monotonic() - began:.0f} s to build, start and be healthy")


def wait_until_healthy(engine: Engine, name: str) -> None:
    """Run a container's health check until it passes: Podman leaves that to systemd, which need not run here."""

    def is_healthy() -> bool:
        return engine.podman("healthcheck", "run", name, check=False).strip() == ""

    def log() -> str:
        return engine.podman("logs", "--tail", "30", name, check=False)

    wait_until(is_healthy, message=log, every_s=1.0)


def work_as(engine: Engine, settings: Mapping[str, str], name: str) -> int:
    """Make an account as the page says, and run that person's job; returns its sandbox level."""
    _, person = blocks(PAGE.read_text())
    token = engine.shell(for_person(person, name), settings).split()[-1]
    home = engine.work / name
    home.mkdir()
    script = str(ROOT / "examples/unchanged/ddp_tutorial.py")
    job = f"berth run --name first --wait {shlex.quote(script)} -- 5 1"
    lines = ("cd", f"echo {token} | berth login http://localhost:{PORT}", job, "berth show --json")
    shown = engine.shell("\n".join(lines), {"HOME": str(home)})
    found = re.search(r'"sandbox":\s*\{\s*"level":\s*(\d)', shown)
    if found is None or not re.search(r'"state":\s*"succeeded"', shown):
        raise NotStarted(f"the job of {name} did not succeed in a sandbox:\n{shown[-MOST_SHOWN:]}")
    return int(found.group(1))


def main() -> int:
    reason = missing()
    if reason:
        say(f"{reason}.")
        return 2
    KEPT.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="trial-", dir=KEPT))
    settings = {
        "BERTH_PORT": str(PORT),
        "BERTH_SESSIONS_PORT": str(SESSIONS_PORT),
        "BERTH_GPUS": "/dev/null",
        "BERTH_DEVICES": "cpu:2",
    }
    engine = Engine(work)
    try:
        if has_registry(engine):
            engine.write_docker([])
        elif shutil.which("debootstrap") is None:
            say("no registry of images answers, and stand-ins need debootstrap, which is not installed.")
            return 2
        else:
            engine.write_docker(make_stand_ins(engine))
            settings["POSTGRES_MAJOR"] = DEBIANS_POSTGRES
        try:
            start(engine, settings)
            levels = {name: work_as(engine, settings, name) for name in PEOPLE}
        finally:
            end = "docker compose down --volumes"
            engine.shell(f"{end} || true", {**settings, "POSTGRES_PASSWORD": "-", "REDIS_PASSWORD": "-"})
    except NotStarted as problem:
        say(str(problem))
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say(f"two people's jobs ran in containers at sandbox levels {levels}")
    return 0 if min(levels.values()) >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
