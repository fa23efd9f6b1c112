"""Runs git in the sandbox of a job: without Berth's state, people's homes and anybody's settings, but with the network.

No hook, filter or helper that a repository names is run; only the transport that the address names is allowed.
"""

import os
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings

from orchestrator.jobs.checkouts import bounded
from orchestrator.jobs.checkouts.deploy_keys import has_passphrase, with_line_ends
from orchestrator.jobs.checkouts.failures import OTHER_HOST, CannotFetch, cause_of
from orchestrator.jobs.environments import base, sources
from orchestrator.jobs.launch import interpreters, isolation
from orchestrator.spec.git_source import folder_of, is_below
from orchestrator.supervisor.sandbox import bwrap

MOST_S = 1800.0  # for all commands of one fetch
# git itself has no limit: a host can name references without end, or describe a large object in a few bytes.
MOST_MEMORY_BYTES = 4 * 1024**3
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
    # Few and small pieces of packs and few threads, so that large repositories fit in MOST_MEMORY_BYTES.
    "core.packedGitWindowSize": "64m",
    "core.packedGitLimit": "512m",
    "pack.threads": "2",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
}
# Answers git's two questions, for the host of the address only: a redirect may lead to another one, which would get
# the secret.  The secret is in a file that only this user can read.
_ASKED = f"""#!/bin/sh
case "$1" in
  "Username for 'https://$BERTH_GIT_HOST': ") printf 'x-access-token\\n' ;;
  "Password for 'https://"*"@$BERTH_GIT_HOST': ") cat "$BERTH_GIT_KEY" ;;
  *) echo '{OTHER_HOST}' >&2; exit 1 ;;
esac
"""
# Blocks of 512 bytes; KiB.
_LIMITED = (
    f'ulimit -f {LARGEST_PACK_BYTES // 512}; ulimit -v {MOST_MEMORY_BYTES // 1024}; ulimit -c 0; exec "$@"'
)


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Git:
    """git for one repository."""

    url: str
    folder: Path  # of this fetch: settings, the key, the files
    home: Path  # of the person's repositories, around ``folder``; the only one that is writable
    has_key: bool = False
    is_wanted: Callable[[], bool] = _always
    until_s: float = field(default_factory=lambda: time.monotonic() + MOST_S)

    @classmethod
    def make(
        cls, url: str, folder: Path, home: Path, key: str | None, is_wanted: Callable[[], bool] = _always
    ) -> "Git":
        """Write what git needs into the folder, which is removed after the fetch.

        Args:
            is_wanted: asked about once a second while a command runs; False ends it.

        Raises:
            CannotFetch: the address is a folder that the operator did not name, or the key has a passphrase.
        """
        if key is not None and transport(url) == "ssh" and has_passphrase(key):
            raise CannotFetch("key_locked", "")
        (folder / "home").mkdir(parents=True)
        config = folder / "config"
        config.write_text("[safe]\n\tdirectory = *\n" if url.startswith("file:") else "")
        asked = folder / "asked"
        asked.write_text(_ASKED)
        asked.chmod(0o700)
        if key is not None:
            fd = os.open(folder / "key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(with_line_ends(key))
        place = folder_of(url)
        if place is not None and not is_below(place, settings.ENVIRONMENT.git_roots):
            raise CannotFetch("folder", "The folder is not below one that the operator named.")
        # Without links, so that nobody can change where it leads.
        return cls(url if place is None else place.as_uri(), folder, home, key is not None, is_wanted)

    def run(self, *words: str | Path, stdin: bytes = b"") -> bytes:
        """The output of a command.

        Raises:
            CannotFetch: with git's words.
            NotWanted: nobody waits for the fetch any more.
            OSError: git or the sandbox cannot be started.
        """
        options = [word for name, value in _OPTIONS.items() for word in ("-c", f"{name}={value}")]
        command = [find(), *options, *map(str, words)]
        given = self.folder / "given"
        given.write_bytes(stdin)
        try:
            done = bounded.run(
                self._sandboxed(["/bin/sh", "-c", _LIMITED, "git", *command]),
                bounded.Limits(self.until_s, LONGEST_OUTPUT, self.is_wanted),
                cwd=self.folder,
                env=self._environment(),
                stdin=given,
            )
        except TimeoutError:
            raise CannotFetch("network", f"It did not end within {MOST_S:.0f} s; timed out.") from None
        except bounded.TooLong:
            raise CannotFetch(
                "size", f"The list of its files has over {LONGEST_OUTPUT // 1024**2} MiB."
            ) from None
        if done.status != 0:
            raise cause_of(self._without_places(done.errors), has_key=self.has_key)
        return bytes(done.output)

    def _without_places(self, said: bytearray) -> str:
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
            "GIT_NO_LAZY_FETCH": "1",  # a partial clone in a folder names the command that brings the rest
            "BERTH_GIT_KEY": str(self.folder / "key"),
            "BERTH_GIT_HOST": urlsplit(self.url).netloc.rpartition("@")[2],
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
        # A worktree or a clone that shares its objects needs another repository of the operator's folders.
        roots = [root.resolve() for root in settings.ENVIRONMENT.git_roots] if folder_of(self.url) else []
        shown = [path for path in (_KNOWN_HOSTS, *certificates, *roots) if path.exists()]
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
