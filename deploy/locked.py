"""Installs the packages of a lock file into the Python that runs this: by uv if it can be told pip's settings, else by pip.

python -m deploy.locked requirements/base.txt

Standard library only, since nothing is installed yet.  Measured as root, who compiles what is installed: 26 s of a
processor instead of pip's 46 for the base lock.
"""

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

UV = Path(sys.executable).with_name("uv")
# What uv calls pip's settings; lists have uv's separator.
AS_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "no-cache-dir": "UV_NO_CACHE",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "trusted-host": "UV_INSECURE_HOST",
}
SEPARATORS = {"extra-index-url": " ", "find-links": ",", "trusted-host": " "}
SWITCHES = frozenset({"no-index", "no-cache-dir"})
# Of what pip prints and keeps, nothing of what it installs from a lock.
WITHOUT_EFFECT = frozenset(
    {
        "cache-dir",
        "config-file",
        "disable-pip-version-check",
        "log",
        "no-color",
        "no-input",
        "no-python-version-warning",
        "no-warn-script-location",
        "prefer-binary",
        "progress-bar",
        "quiet",
        "require-virtualenv",
        "retries",
        "root-user-action",
        "verbose",
    }
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class OnlyPip(Exception):
    """pip has a setting that uv cannot be told; the text names it."""


def install(lock: Path) -> int:
    """Install what a lock file names; returns the exit status of the program that did it."""
    try:
        settings = pip_settings()
        variables = uv_variables(settings, lock)
    except OnlyPip as reason:
        say(f"pip installs, because uv knows no setting like pip's {reason}")
        return install_by_pip(lock)
    if not uv_works():
        bring_uv(lock)
    if uv_works():
        # Root installs for people who may not write there, so nobody could compile later.
        compiles = os.geteuid() == 0 and not _is_on(settings.get("no-compile", ""))
        options = ["--compile-bytecode"] if compiles else []
        command = [str(UV), "pip", "install", "--python", sys.executable, "--no-config", "--quiet", *options]
        done = subprocess.run(
            [*command, "--require-hashes", "--requirement", str(lock)],
            env={**os.environ, **variables},
            check=False,
        )
        if done.returncode == 0:
            return 0
        say("uv could not install the packages; pip tries ...")
    return install_by_pip(lock)


def say(text: str) -> None:
    sys.stdout.write(f"berth: {text}\n")
    sys.stdout.flush()


def install_by_pip(lock: Path) -> int:
    options = ("--quiet", "--disable-pip-version-check", "--no-input")
    command = [sys.executable, "-m", "pip", "install", "--require-hashes", "--requirement", str(lock)]
    return subprocess.run([*command, *options], check=False).returncode


def uv_works() -> bool:
    """Whether uv's program is there and runs: its package may be there without it."""
    try:
        return subprocess.run([UV, "--version"], stdout=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False


def bring_uv(lock: Path) -> None:
    """Install by pip the uv that the lock names, if any; without one pip installs everything."""
    entry = entry_of("uv", lock.read_text())
    if entry is None:
        return
    with tempfile.TemporaryDirectory(prefix="berth-uv-") as folder:
        own = Path(folder, "uv.txt")
        own.write_text(entry)
        install_by_pip(own)


def entry_of(name: str, lock: str) -> str | None:
    """The lines of one package in a lock file: its version and hashes."""
    found = re.search(rf"^{re.escape(name)}==(?:.*\\\n)*.*", lock, re.MULTILINE)
    return None if found is None else f"{found[0]}\n"


def pip_settings() -> dict[str, str]:
    """What pip's files and variables set for an install, by the name of the option."""
    command = [sys.executable, "-m", "pip", "config", "list", "--disable-pip-version-check"]
    loud = {"PIP_QUIET": "0", "PIP_VERBOSE": "0"}  # a quiet pip lists nothing
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env={**os.environ, **loud})
    if done.returncode:
        raise OnlyPip("configuration, which pip itself refuses")
    try:
        return read_settings(done.stdout)
    except (SyntaxError, ValueError):  # a pip that prints them in another way
        raise OnlyPip("settings, which cannot be read here") from None


def read_settings(text: str) -> dict[str, str]:
    """Read the lines of ``pip config list``, such as ``global.index-url='https://...'``."""
    found: dict[tuple[str, str], str] = {}
    for line in text.splitlines():
        key, is_setting, value = line.partition("=")
        scope, _, name = key.rpartition(".")
        if is_setting:
            found[scope, name] = str(ast.literal_eval(value))
    scopes = ("global", "install", ":env:")  # the later ones win; those of other commands say nothing
    return {name: value for scope in scopes for (of, name), value in found.items() if of == scope}


def uv_variables(settings: Mapping[str, str], lock: Path) -> dict[str, str]:
    """The variables that tell uv pip's settings.

    Raises:
        OnlyPip: uv cannot be told one of them.
    """
    # pip takes the best of all indexes, and trusts the certificates of the system.
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_SYSTEM_CERTS": "1"}
    if bundle := os.environ.get("REQUESTS_CA_BUNDLE"):
        variables["SSL_CERT_FILE"] = bundle
    for name, value in settings.items():
        if name == "constraint":
            _check_constraints(value.split(), lock)
        elif name in SWITCHES:
            if _is_on(value):
                variables[AS_UV[name]] = "1"
        elif name in AS_UV:
            words = value.split() if name in SEPARATORS else [value.strip()]
            variables[AS_UV[name]] = SEPARATORS.get(name, "").join(words)
        elif name not in WITHOUT_EFFECT and name != "no-compile":  # uv compiles only where it is asked to
            raise OnlyPip(name)
    return variables


def _is_on(value: str) -> bool:
    return value.strip().lower() in {"1", "true", "yes", "on"}


def _check_constraints(files: list[str], lock: Path) -> None:
    """Leave a lock to pip of which a constraint names a package: beside hashes uv takes exact versions only.

    Raises:
        OnlyPip: a constraint is about a locked package, or cannot be read here.
    """
    locked = {_plain(name) for name in re.findall(r"^([A-Za-z0-9][\w.-]*)==", lock.read_text(), re.MULTILINE)}
    for name in _constrained(files):
        if name is None or _plain(name) in locked:
            raise OnlyPip("constraint" if name is None else f"constraint of {name}")


def _constrained(files: list[str]) -> Iterator[str | None]:
    """The names in files of constraints; None for what is no plain line."""
    for file in files:
        try:
            lines = Path(file).read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            yield None
            continue
        for line in lines:
            text = line.partition("#")[0].strip()
            if text:
                name = _NAME.match(text)
                yield None if name is None else name[0]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(install(Path(sys.argv[1])))
