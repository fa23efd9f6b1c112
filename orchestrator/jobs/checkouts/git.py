"""Runs git in the sandbox of a job: without Berth's state, people's homes and anybody's settings, but with the network.

No hook, filter or helper that a repository names is run; only the transport that the address names is allowed.
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from orchestrator.jobs.checkouts.failures import CannotFetch, cause_of
from orchestrator.jobs.environments import base, sources
from orchestrator.jobs.launch import interpreters, isolation
from orchestrator.spec.git_source import folder_of, is_below
from orchestrator.supervisor.sandbox import bwrap

MOST_S = 1800.0
LARGEST_PACK_BYTES = 4 * 1024**3
LONGEST_OUTPUT = 64 * 1024**2  # the list of a large tree's files
_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")  # the operator's
_OPTIONS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "credential.helper": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "fetch.recurseSubmodules": "false",
    "submodule.recurse": "false",
    "advice.detachedHead": "false",
    "protocol.ext.allow": "never",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
}
# Answers git's two questions; the secret is in a file that only this user can read.
_ASKED = """#!/bin/sh
case "$1" in
  Username*) printf 'x-access-token\\n' ;;
  *) cat "$BERTH_GIT_KEY" ;;
esac
"""
_LIMITED = f'ulimit -f {LARGEST_PACK_BYTES // 512}; exec "$@"'  # blocks of 512 bytes


@dataclass(frozen=True, slots=True)
class Git:
    """git for one repository."""

    url: str
    folder: Path  # of this fetch: settings, the key, the files
    home: Path  # of the person's repositories, around ``folder``; the only one that is writable
    has_key: bool = False

    @classmethod
    def make(cls, url: str, folder: Path, home: Path, key: str | None) -> "Git":
        """Write what git needs into the folder, which is removed after the fetch.

        Raises:
            CannotFetch: the address is a folder that the operator did not name.
        """
        (folder / "home").mkdir(parents=True)
        config = folder / "config"
        config.write_text("[safe]\n\tdirectory = *\n" if url.startswith("file:") else "")
        asked = folder / "asked"
        asked.write_text(_ASKED)
        asked.chmod(0o700)
        if key is not None:
            fd = os.open(folder / "key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(f"{key.strip()}\n")  # ssh reads no key without its last line end
        place = folder_of(url)
        if place is not None and not is_below(place, settings.ENVIRONMENT.git_roots):
            raise CannotFetch("folder", "The folder is not below one that the operator named.")
        # Without links, so that nobody can change where it leads.
        return cls(url if place is None else place.as_uri(), folder, home, key is not None)

    def run(self, *words: str | Path, stdin: bytes | None = None) -> bytes:
        """The output of a command.

        Raises:
            CannotFetch: with git's words.
            OSError: git or the sandbox cannot be started.
        """
        options = [word for name, value in _OPTIONS.items() for word in ("-c", f"{name}={value}")]
        command = [find(), *options, *map(str, words)]
        try:
            done = subprocess.run(  # noqa: S603 -- git, in a sandbox
                self._sandboxed(["/bin/sh", "-c", _LIMITED, "git", *command]),
                input=stdin if stdin is not None else b"",
                capture_output=True,
                cwd=self.folder,
                env=self._environment(),
                timeout=MOST_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CannotFetch("network", f"It did not end within {MOST_S:.0f} s; timed out.") from None
        if done.returncode != 0 or len(done.stdout) > LONGEST_OUTPUT:
            raise cause_of(self._without_places(done.stderr), has_key=self.has_key)
        return done.stdout

    def _without_places(self, said: bytes) -> str:
        """Errors without the places of this server."""
        text = said.decode(errors="replace")
        return text.replace(f"{self.folder}/", "").replace(f"{self.home}/", "")

    def _environment(self) -> dict[str, str]:
        passed = sources.passed_on()
        return {
            "PATH": os.defpath,
            "LC_ALL": "C",
            "HOME": str(self.folder / "home"),
            **passed,
            **({"GIT_SSL_CAINFO": passed["SSL_CERT_FILE"]} if "SSL_CERT_FILE" in passed else {}),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": str(self.folder / "config"),
            "GIT_ALLOW_PROTOCOL": transport(self.url),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": str(self.folder / "asked") if self.has_key else "/bin/false",
            "BERTH_GIT_KEY": str(self.folder / "key"),
            "GIT_SSH_COMMAND": shlex.join(self._ssh()),
            "GIT_SSH_VARIANT": "ssh",
            "GIT_INDEX_FILE": str(self.folder / "index"),
        }

    def _ssh(self) -> list[str]:
        """ssh without anybody's settings or agent; a host is trusted as at the first time that this person met it."""
        options = {
            "BatchMode": "yes",
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "StrictHostKeyChecking": "accept-new",
            "UserKnownHostsFile": str(self.home / "known_hosts"),
            "GlobalKnownHostsFile": str(_KNOWN_HOSTS),
            "ConnectTimeout": "20",
            "ServerAliveInterval": "15",
            "ForwardAgent": "no",
        }
        words = ["ssh", "-F", "none", *(f"-o{name}={value}" for name, value in options.items())]
        return [*words, "-i", str(self.folder / "key")] if self.has_key else words

    def _sandboxed(self, words: Sequence[str]) -> list[str]:
        level = isolation.level()
        if not level:
            return list(words)
        named = sources.passed_on()
        certificates = [Path(named[name]) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if name in named]
        places = (_KNOWN_HOSTS, *certificates, folder_of(self.url))
        shown = [path for path in places if path is not None and path.exists()]
        launch = interpreters.trial(base.python(), [], level, work=self.folder, read_only=shown)
        return bwrap.tool(launch, words, writable=[self.home])


def find() -> str:
    """The path of git.

    Raises:
        CannotFetch: it is not installed.
    """
    path = shutil.which("git")
    if path is None:
        raise CannotFetch("tool", "git is not installed on this server; ask an administrator to install it.")
    return os.path.realpath(path)


def transport(url: str) -> str:
    """The only transport that git may use; it also holds for redirects."""
    return url.partition("://")[0] if "://" in url else "ssh"
