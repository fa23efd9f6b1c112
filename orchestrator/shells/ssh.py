"""The SSH server of one connection: terminals, commands, files and forwarded ports, by asyncssh.

It asks for no key: only our server reaches the socket, and has checked who calls.  The host key is new each time.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import asyncssh

from orchestrator.shells import terminals
from orchestrator.supervisor.linux.processes import environ

_SHELLS = ("/bin/bash", "/bin/sh")
# What tells a process that it is a rank of the run, or lets it write the run's metrics.
_OF_THE_RUN = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
        *("PET_MASTER_PORT", "BERTH_ATTEMPT_FOLDER", "BERTH_METRICS_FILE", "BERTH_MEDIA_DIR"),
        *("BERTH_DIE_WITH_PARENT", "BERTH_STACKS_ON_SIGUSR2"),
    }
)
_ALIVE_EVERY_S = 30.0
_PIECE_BYTES = 1 << 16


def shell_environment(pid: int) -> dict[str, str]:
    """The environment of a running process, without what belongs to the run itself."""
    entries = [os.fsdecode(entry).partition("=") for entry in environ(pid)]
    return {name: value for name, _, value in entries if name and name not in _OF_THE_RUN}


@dataclass(frozen=True, slots=True)
class SshServer:
    """Serves one connection; ``prepare`` makes it."""

    host_key: asyncssh.SSHKey

    async def serve(self, listener: socket.socket, environment: Mapping[str, str], patience_s: float) -> None:
        """Serve the first connection to ``listener`` until it ends; returns if nobody connects in time."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(patience_s):
                accepted, _ = await loop.sock_accept(listener)
        except TimeoutError:
            return
        finally:
            listener.close()
        programs = _Programs(dict(environment))
        connection = await asyncssh.run_server(
            accepted,
            server_factory=_Visitor,
            server_host_keys=[self.host_key],
            process_factory=programs.run,
            sftp_factory=_Files,
            allow_scp=True,
            encoding=None,
            line_editor=False,
            agent_forwarding=False,
            keepalive_interval=_ALIVE_EVERY_S,
        )
        await connection.wait_closed()


def prepare() -> SshServer:
    """Make the host key; all modules are loaded once this returns."""
    return SshServer(asyncssh.generate_private_key("ssh-ed25519"))


class _Visitor(asyncssh.SSHServer):
    """Accepts the caller, who may reach every port that the attempt itself reaches."""

    def begin_auth(self, username: str) -> bool:
        return False

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True

    def server_requested(self, listen_host: str, listen_port: int) -> bool:
        return True

    def unix_connection_requested(self, dest_path: str) -> bool:
        return True


class _Files(asyncssh.SFTPServer):
    """Reads and writes what the attempt may."""

    def exit(self) -> None:
        self.channel.exit(0)  # scp takes a missing exit code for a failure


class _Programs:
    """Starts what a client asks for: the command, or a shell; in a terminal where the client has one."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self._shell = next((shell for shell in _SHELLS if os.access(shell, os.X_OK)), _SHELLS[-1])

    async def run(self, process: "asyncssh.SSHServerProcess[bytes]") -> None:
        words = [self._shell, "-c", process.command] if process.command else [self._shell]
        environment = {**self._environment, "SHELL": self._shell}
        try:
            if process.term_type is not None:
                environment["TERM"] = process.term_type
                code = await terminals.run(process, words, environment)
            else:
                code = await _run_piped(process, words, environment)
        except OSError as error:
            process.stderr.write(f"The shell could not be started: {error}\n".encode())
            code = 126
        if code < 0:
            process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
        else:
            process.exit(code)


async def _run_piped(
    process: "asyncssh.SSHServerProcess[bytes]", words: list[str], environment: Mapping[str, str]
) -> int:
    """Run a command on pipes, as rsync and editors do.

    Raises:
        OSError: it cannot be started.
    """
    pipe = asyncio.subprocess.PIPE
    started = await asyncio.create_subprocess_exec(
        *words, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
    )
    # The channel has one end for both outputs: the exit code tells it.
    await process.redirect(
        stdin=started.stdin,
        stdout=started.stdout,
        stderr=started.stderr,
        bufsize=_PIECE_BYTES,
        send_eof=False,
    )
    code = await started.wait()
    # Each returns once everything that came through its pipe is sent.
    await process.stdout.drain()
    await process.stderr.drain()
    return code
