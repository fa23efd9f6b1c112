"""Runs the suite on the oldest and the newest Python of this machine, as an ordinary user.

python3 -m tests.pythons                           the whole suite on both
python3 -m tests.pythons --only oldest --parts     what depends on the interpreter, on the oldest one

Root's runs are a user's, too (--user): in a copy of the tree that goes with them. Standard library only.
"""

import argparse
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import make

ROOT = Path(__file__).resolve().parents[1]
OLDEST = (3, 11)
# What pickles, unpacks, starts or finds an interpreter: patch releases have changed each of these.
PARTS = (
    "tests/deploy/test_oldest_python.py",
    "tests/deploy/test_environments.py",
    "tests/server/test_unpacking.py",
    "tests/server/test_backup.py",
    "tests/store/test_bundles.py",
    "tests/store/test_checkpoints.py",
    "tests/store/test_scripts.py",
    "tests/store/test_trees.py",
    "tests/supervisor/test_entry.py",
    "tests/supervisor/test_landlock.py",
    "tests/supervisor/test_spawn.py",
    "tests/training/test_checkpoint.py",
    "tests/training/test_sharded.py",
)
PLACES = ("/usr/bin", "/usr/local/bin", "/opt/*/bin", "~/.pyenv/versions/*/bin", "~/.local/bin")
ABOUT = """
import ensurepip, os, sys, venv
print(*sys.version_info[:3])
print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
"""
INSTALL = "import sys; from tests import pythons; pythons.install(*sys.argv[1:])"
Version = tuple[int, ...]


def find_pythons() -> dict[Version, Path]:
    """The Pythons that Berth can use, by version; those that cannot make an environment are left out."""
    folders = [Path(each) for each in os.environ.get("PATH", "").split(":") if each]
    for place in PLACES:
        pattern = str(Path(place).expanduser()).lstrip("/")
        folders += sorted(Path("/").glob(pattern))
    programs = {path.resolve() for folder in folders for path in _files_in(folder) if _is_python(path)}
    found: dict[Version, Path] = {}
    for program in sorted(programs):
        version, real = _ask(program)
        if version >= OLDEST:
            found.setdefault(version, real)
    return found


def _files_in(folder: Path) -> list[Path]:
    """Nothing where it is missing or not to be read, as another's folders on PATH may be."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _is_python(path: Path) -> bool:
    return path.name.removeprefix("python3").removeprefix(".").isdigit() or path.name == "python3"


def _ask(program: Path) -> tuple[Version, Path]:
    """Its version, and the program itself behind links and wrappers; no version where it makes no environments."""
    try:
        done = subprocess.run([program, "-c", ABOUT], capture_output=True, text=True, check=False)
    except OSError:
        return (), program
    version, _, real = done.stdout.strip().partition("\n")
    return (tuple(map(int, version.split())), Path(real)) if done.returncode == 0 else ((), program)


@contextmanager
def tree_for(user: pwd.struct_passwd | None) -> Iterator[Path]:
    """This tree, or a copy of it in which a user may write."""
    if user is None:
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="berth-pythons-", dir="/var/tmp") as folder:
        os.chown(folder, user.pw_uid, user.pw_gid)
        tree = Path(folder, "berth")
        shutil.copytree(
            ROOT,
            tree,
            symlinks=True,
            ignore=shutil.ignore_patterns(".venv*", ".git", ".*_cache", ".hypothesis", "__pycache__"),
        )
        yield tree


def find_lender(version: Version) -> Path | None:
    """An environment of this tree for a patch release of the same version, if there is one."""
    return next((path for path in sorted(ROOT.glob(".venv*")) if packages_of(path, version).is_dir()), None)


def packages_of(environment: Path, version: Version) -> Path:
    return environment / "lib" / f"python{version[0]}.{version[1]}" / "site-packages"


def install(lender: str = "") -> None:
    """Bring the environment of this Python and this tree in step with the lock files, and print its program.

    Args:
        lender: an environment to begin with a copy of, so that pip changes only what the lock files choose by
            the patch release. To install everything takes minutes of a core.
    """
    if lender and not make.VENV.exists():
        make.say(f"copying the packages of {Path(lender).name} ...")
        version = sys.version_info[:2]
        venv.EnvBuilder(with_pip=False).create(make.VENV)
        copy = ("cp", "-a", f"{packages_of(Path(lender), version)}/.", packages_of(make.VENV, version))
        subprocess.run(copy, check=True)
        if (uv := Path(lender, "bin", "uv")).exists():
            shutil.copy2(
                uv, make.VENV / "bin"
            )  # looks through the packages in a moment; pip takes 9 s of a core
    for group in ("base", "test"):
        make.install(group)
    sys.stdout.write(f"{make.PYTHON}\n")


def run_on(version: Version, python: Path, user: pwd.struct_passwd | None, arguments: Sequence[str]) -> int:
    """Install what the tests need for one Python, and run them; the exit status."""
    with tree_for(user) as tree:
        # As whoever calls, whose downloads pip has kept.
        quick = {"PIP_NO_COMPILE": "1"} if user else {}
        installed = subprocess.run(
            [python, "-c", INSTALL, str(find_lender(version) or "")],
            cwd=tree,
            env={**os.environ, **quick},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        sys.stdout.write(installed.stdout)
        if installed.returncode:
            return installed.returncode
        program = installed.stdout.split()[-1]
        if user is not None:
            for path in [tree, *tree.rglob("*")]:
                os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
        workers = str(min(4, max(2, os.cpu_count() or 2)))
        options = ["-m", "not gpu", "-n", workers, "--dist", "loadfile", "-q", *arguments]
        return subprocess.run(
            [program, "-m", "tests.tools.attempts", "pythons", *options],
            cwd=tree,
            env=_environment(user),
            user=user.pw_uid if user else None,
            group=user.pw_gid if user else None,
            extra_groups=[] if user else None,
            check=False,
        ).returncode


def _environment(user: pwd.struct_passwd | None) -> Mapping[str, str]:
    if user is None:
        return os.environ
    names = ("PATH", "LANG", "LC_ALL", "BERTH_CI", "TERM")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return {**kept, "HOME": user.pw_dir, "USER": user.pw_name}


def _ordinary_user(name: str | None) -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    if name is None:
        sys.exit("berth: root may do what users may not; name an ordinary user with --user.")
    try:
        return pwd.getpwnam(name)
    except KeyError:
        sys.exit(f"berth: there is no user {name}; make one (useradd --create-home {name}).")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("oldest", "newest"), help="one of the two Pythons")
    parser.add_argument("--parts", action="store_true", help="tests that depend on the interpreter")
    parser.add_argument("--user", help="ordinary user for root's runs")
    parser.add_argument("arguments", nargs="*", help="pytest's, in the place of the whole suite")
    chosen = parser.parse_args()
    found = find_pythons()
    if not found:
        sys.exit(
            "berth: no Python from 3.11 on that can make an environment; on Debian install python3-venv."
        )
    versions = {"oldest": min(found), "newest": max(found)}
    user = _ordinary_user(chosen.user)
    for version in sorted({at for name, at in versions.items() if chosen.only in (None, name)}):
        who = f" as {user.pw_name}" if user else ""
        sys.stdout.write(f"berth: Python {'.'.join(map(str, version))} ({found[version]}){who}\n")
        sys.stdout.flush()
        status = run_on(version, found[version], user, chosen.arguments or (PARTS if chosen.parts else ()))
        if status:
            sys.exit(status)


if __name__ == "__main__":
    main()
