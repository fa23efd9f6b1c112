#!/usr/bin/env python3
"""Installs what Berth needs into ``.venv`` and runs it; standard library only, so it works on a bare machine.

python3 make.py demo | up | down | check | test | ci | mutants | trainers | bench | gpu | dist | release-check | screens | film | chaos | install-service
                | lab | containers | torch | lock

``.venv`` belongs to the Python that made it. Another one gets an environment of its own, such as ``.venv-3.13.0``.
"""

import argparse
import hashlib
import os
import platform
import pwd
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
# The program itself, also where an environment's link to it was called.
THIS_PYTHON = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
REQUIREMENTS = ROOT / "requirements"
TORCH = "torch>=2.10,<2.14"  # a range: each driver gets the newest build that it can run
RIVALS = ("accelerate>=1.10", "lightning>=2.5")  # trainers to measure beside ours
OLDEST = (3, 11)


def maker_of(environment: Path) -> Path | None:
    """The Python that an environment was made with; None where nobody can tell."""
    try:
        lines = (environment / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return None
    values = (
        line.partition("=")[2].strip() for line in lines if line.partition("=")[0].strip() == "executable"
    )
    return next(map(Path, values), None)


def environment_for(python: Path, version: str) -> Path:
    """The folder of a Python's environment; that of a Python that is gone is taken over."""
    first = ROOT / ".venv"
    maker = maker_of(first)
    if maker is None or maker == python or not is_there(maker):
        return first
    return ROOT / f".venv-{version}"


def is_there(path: Path) -> bool:
    """Whether a file is there; one that only another user may look at is."""
    try:
        return path.exists()
    except PermissionError:
        return True


VENV = environment_for(THIS_PYTHON, platform.python_version())
PYTHON = VENV / "bin" / "python"


def say(text: str) -> None:
    print(f"berth: {text}", flush=True)


def run(*command: object, **variables: str) -> None:
    """Run a command; its failure is ours."""
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, env={**os.environ, **variables}, check=False
    )
    if done.returncode:
        sys.exit(done.returncode if done.returncode > 0 else 128 - done.returncode)


def install(group: str) -> None:
    """Bring ``.venv`` in step with the lock file of a group; nothing to do takes a millisecond."""
    lock = REQUIREMENTS / f"{group}.txt"
    chosen = TORCH + os.environ.get("BERTH_TORCH_INDEX", "")
    wanted = hashlib.sha256(lock.read_bytes() + chosen.encode() + str(ROOT).encode()).hexdigest()
    stamp = VENV / f".{group}.installed"
    clear_of_lost_python()
    if stamp.exists() and stamp.read_text() == wanted and PYTHON.exists():
        return
    if not PYTHON.exists():
        say(f"making a virtual environment in {VENV.name} for Python {platform.python_version()} ...")
        make_environment()
    clear_of_cut_off_packages()
    began = time.monotonic()
    say(f"installing {count_packages(lock)} locked packages ({group}) ...")
    run(PYTHON, "-m", "deploy.locked", lock)
    link_project()
    install_torch()
    stamp.write_text(wanted)
    say(f"installed in {time.monotonic() - began:.0f} s")


def install_torch() -> None:
    """Install the build of torch that the NVIDIA driver can run, or that BERTH_TORCH_INDEX names."""
    index = os.environ.get("BERTH_TORCH_INDEX", "")
    build, fits = (index, False) if index else build_for_driver()
    if "/" in index:
        say(f"installing {TORCH} from {index} (the largest part) ...")
        pip("install", "--upgrade", "--index-url", index, TORCH)
    elif build == "default" or fits:
        say(f"installing {TORCH} unless it is there (the largest part) ...")
        pip("install", TORCH)
    else:
        install_build(build, asked_for=bool(index))


def install_build(build: str, *, asked_for: bool) -> None:
    """Install one build by uv, which knows where each is; else the one that pip finds, unless it was asked for."""
    say(f"installing {TORCH} for {build} (the largest part) ...")
    uv, python = str(VENV / "bin" / "uv"), str(PYTHON)
    command = [uv, "pip", "install", "--python", python, "--quiet", "--torch-backend", build]
    done = subprocess.run([*command, "--reinstall-package", "torch", TORCH], cwd=ROOT, check=False)
    if done.returncode == 0:
        return
    if asked_for:
        sys.exit(f"berth: the build {build} of BERTH_TORCH_INDEX could not be installed.")
    say(f"the index of {build} does not answer; taking torch from where pip takes its packages instead ...")
    pip("install", TORCH)


def build_for_driver() -> tuple[str, bool]:
    """The build for this machine, and whether the torch that is installed already is as good."""
    answer = subprocess.run(
        [PYTHON, "-m", "orchestrator.devices.torch_builds"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    build, _, state = answer.stdout.strip().partition(" ")
    return (build, state == "fits") if answer.returncode == 0 else ("default", False)


def torch() -> None:
    """Bring torch in step with a driver that was changed."""
    install("base")
    install_torch()


def clear_of_lost_python() -> None:
    """Remove the environment of a Python that was removed or replaced: its packages are for that one alone."""
    maker = maker_of(VENV)
    if maker is not None and not maker.exists():
        say(f"{VENV.name} belonged to {maker}, which is gone; making it again with {THIS_PYTHON} ...")
        shutil.rmtree(VENV)


def clear_of_cut_off_packages() -> None:
    """Forget packages whose installation was cut off, as by Ctrl-C: pip takes them for whole.

    Both pip and uv write INSTALLER when the files and commands of a package are there.
    """
    for about in purelib().glob("*.dist-info"):
        if not (about / "INSTALLER").exists():
            say(f"{about.stem} was not installed to its end; installing it again ...")
            shutil.rmtree(about)


def make_environment() -> None:
    try:
        venv.EnvBuilder(with_pip=True).create(VENV)
    except (subprocess.CalledProcessError, SystemExit) as error:
        shutil.rmtree(VENV, ignore_errors=True)
        sys.exit(
            f"berth: the virtual environment could not be made ({error}); on Debian install python3-venv."
        )


def count_packages(lock: Path) -> int:
    return sum("==" in line and not line.startswith((" ", "#")) for line in lock.read_text().splitlines())


def pip(*arguments: object) -> None:
    run(PYTHON, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check", "--no-input")


def purelib() -> Path:
    """Where the environment keeps its packages."""
    return Path(sysconfig.get_path("purelib", scheme="venv", vars={"base": str(VENV)}))


def link_project() -> None:
    """Make ``import training`` work for jobs wherever they run: one line in site-packages; and the command."""
    (purelib() / "berth.pth").write_text(f"{ROOT}\n")
    command = VENV / "bin" / "berth"  # through sh, because a #! line ends at a space and at 127 bytes
    # -P: people run it in the folder of their scripts, and a random.py there is not Python's.
    command.write_text(
        f'#!/bin/sh\nexec {shlex.quote(str(PYTHON))} -P -c "from berth.cli import main; main()" "$@"\n'
    )
    command.chmod(0o755)


def manage(*arguments: object) -> None:
    """Become ``manage.py``, so that Ctrl-C and the exit status are its own."""
    os.chdir(ROOT)
    os.execv(PYTHON, [str(PYTHON), "manage.py", *map(str, arguments)])


def become(module: str, *arguments: str) -> None:
    """Become a module of this tree, run by the environment's Python."""
    os.chdir(ROOT)
    os.execv(PYTHON, [str(PYTHON), "-m", module, *arguments])


def demo(once: bool) -> None:
    install("base")
    manage("up", "--example", *(["--once"] if once else []))


def up() -> None:
    install("base")
    manage("up")


def down() -> None:
    install("base")
    manage("down")


def test(arguments: list[str]) -> None:
    """Lint, types, import rules and all tests but those that need a GPU; with arguments those tests alone."""
    install("base")
    install("test")
    if arguments:
        become("pytest", "-m", "not gpu", "-q", *arguments)
    become("tests.tools.suite")


def check() -> None:
    """What a change can have broken, within a minute."""
    install("base")
    install("test")
    become("tests.tools.check")


def ci(user: str | None) -> None:
    install("base")
    install("test")
    become("tests.tools.suite", "--ci", *(["--user", user] if user else []))


def mutants(arguments: list[str]) -> None:
    install("base")
    install("test")
    become("tests.mutants", *arguments)


def trainers(names: list[str], home: str | None) -> None:
    install("base")
    install("test")
    become("tests.trainers", *names, *(["--home", home] if home else []))


def install_rivals() -> None:
    """The trainers that `bench` measures beside ours; torch stays the one that is there."""
    stamp = VENV / ".rivals.installed"
    wanted = f"{RIVALS}"
    if not stamp.exists() or stamp.read_text() != wanted:
        say(f"installing {' and '.join(RIVALS)} to measure beside ...")
        pip("install", *RIVALS, TORCH)
        stamp.write_text(wanted)


def bench(name: str | None) -> None:
    install("base")
    if name in (None, "pages", "mcp"):
        install("test")  # a browser's driver, the SDK of MCP
    install_rivals()
    become("benchmarks", *([name] if name else []))


def gpu(parts: list[str], *, dry_run: bool) -> None:
    """Everything that needs a GPU, within 15 minutes; a dry run does it on the CPU and keeps nothing."""
    install("base")
    install("test")
    become("benchmarks.gpu", *(["--dry-run"] if dry_run else []), *parts)


def screens() -> None:
    install("base")
    install("test")
    become("benchmarks.screens")


def film() -> None:
    install("base")
    install("test")
    become("benchmarks.film")


def docs() -> None:
    install("base")
    install("docs")
    become("deploy.docs.build")


def release(*arguments: str) -> None:
    install("base")
    become("deploy.release", *arguments)


def chaos(faults: int, seed: int, engine: str) -> None:
    install("test" if engine == "ray" else "base")  # Ray is an extra, and among what tests need
    become("tests.chaos", "--faults", str(faults), "--seed", str(seed), "--engine", engine)


def install_service(user: str | None) -> None:
    """Let systemd run Berth: for the present user, or as root for another one, whose home then holds the state."""
    if user is not None:
        home = home_of(user)
        os.environ.setdefault("BERTH_HOME", f"{home}/.berth")
    install("base")
    manage("install_service", *(["--system", "--user", user] if user else []))


def home_of(user: str) -> str:
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        sys.exit(
            f"berth: there is no user {user}. Create one that may use the GPUs: "
            f"sudo useradd --system --create-home --groups video {user}"
        )


def lab() -> None:
    install("base")
    install("test")
    become("tests.deploy.lab")


def containers() -> None:
    install("base")
    install("test")
    become("tests.deploy.containers")


def lock() -> None:
    """Write the lock files again from pyproject.toml; needs uv."""
    uv = shutil.which("uv", path=f"{VENV / 'bin'}:{os.environ['PATH']}")
    if uv is None:
        sys.exit("berth: locking needs uv (pip install uv).")
    base = ("--group", "torch-needs")
    options = [
        "--universal",
        "--python-version",
        "3.11",
        "--generate-hashes",
        "--no-annotate",
        "--no-header",
        "-q",
    ]
    groups_of = {
        "base": base,
        "docs": (*base, "--group", "docs"),
        "test": (*base, "--group", "docs", "--group", "test"),
    }
    for name, groups in groups_of.items():
        constraint = () if name == "base" else ("-c", REQUIREMENTS / "base.txt")
        run(
            uv,
            "pip",
            "compile",
            *options,
            "pyproject.toml",
            "--extra",
            "server",
            "--extra",
            "ldap",  # a clone takes what pip would choose by an extra
            *groups,
            *constraint,
            "-o",
            REQUIREMENTS / f"{name}.txt",
        )


def main() -> None:
    if sys.version_info < OLDEST:
        sys.exit(
            f"berth: Python {OLDEST[0]}.{OLDEST[1]} or newer is needed; this is {sys.version.split()[0]}."
        )
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help="start everything and run the example").add_argument(
        "--once", action="store_true", help="end when the example ended"
    )
    commands.add_parser("up", help="start everything")
    commands.add_parser("down", help="stop everything, trainings too")
    commands.add_parser("check", help="what a change can have broken, within a minute")
    tests = commands.add_parser("test", help="all checks and tests, or the given tests alone")
    tests.add_argument("arguments", nargs="*", help="pytest's")
    everything = commands.add_parser(
        "ci", help="all checks and tests, on PostgreSQL and the oldest Python too"
    )
    everything.add_argument("--user", help="ordinary user for root's run on the oldest Python")
    commands.add_parser("mutants", help="small faults that tests should notice").add_argument(
        "arguments", nargs="*", help="room, and options of tests.mutants"
    )
    matrix = commands.add_parser("trainers", help="trainers of other packages, from install to resume")
    matrix.add_argument("names", nargs="*", help="some of them; all by default")
    matrix.add_argument("--home", help="folder that keeps their packages for the next time")
    commands.add_parser("bench", help="print the benchmarks' tables").add_argument("--name")
    on_gpu = commands.add_parser("gpu", help="tests and benchmarks that need a GPU, within 15 minutes")
    on_gpu.add_argument("parts", nargs="*", help="some of them; all by default")
    on_gpu.add_argument("--dry-run", action="store_true", help="on the CPU, keeping no results")
    commands.add_parser("docs", help="build the documentation site, which Berth serves under /docs/")
    commands.add_parser("dist", help="build wheel and source distribution into build/dist/")
    commands.add_parser("release-check", help="build, bill of materials, audit of the locked packages")
    commands.add_parser("screens", help="take a picture of every page into docs/screens/")
    commands.add_parser("film", help="record a minute of the pages into build/film/")
    campaign = commands.add_parser("chaos", help="hurt a running server at random, and say what came of it")
    campaign.add_argument("--faults", type=int, default=100)
    campaign.add_argument("--seed", type=int, default=1)
    campaign.add_argument("--engine", default="local", help="ray: with three servers that join through Ray")
    service = commands.add_parser("install-service", help="let systemd run it, for this user by default")
    service.add_argument("--run-as", metavar="USER", help="as a service of the system that runs as this user")
    commands.add_parser("lab", help="set up a bare Debian by the lab page's commands; needs root")
    commands.add_parser("containers", help="build the images and run two people's jobs in them; needs root")
    commands.add_parser("torch", help="install the torch that fits the NVIDIA driver")
    commands.add_parser("lock", help="write the lock files again")
    chosen = parser.parse_args()
    match chosen.command:
        case "demo":
            demo(chosen.once)
        case "up":
            up()
        case "down":
            down()
        case "check":
            check()
        case "test":
            test(chosen.arguments)
        case "ci":
            ci(chosen.user)
        case "mutants":
            mutants(chosen.arguments)
        case "trainers":
            trainers(chosen.names, chosen.home)
        case "bench":
            bench(chosen.name)
        case "docs":
            docs()
        case "gpu":
            gpu(chosen.parts, dry_run=chosen.dry_run)
        case "dist":
            release("--dist")
        case "release-check":
            release()
        case "screens":
            screens()
        case "film":
            film()
        case "chaos":
            chaos(chosen.faults, chosen.seed, chosen.engine)
        case "install-service":
            install_service(chosen.run_as)
        case "lab":
            lab()
        case "containers":
            containers()
        case "torch":
            torch()
        case "lock":
            lock()


if __name__ == "__main__":
    main()
