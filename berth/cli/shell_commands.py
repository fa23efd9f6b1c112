"""Commands that lead into a running job: a terminal, SSH, forwarded ports."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from berth.cli.options import JobId, complete_job
from berth.cli.printing import remark, safe, say
from berth.shared.arguments import WrongUse

if TYPE_CHECKING:
    from berth.client import Job

commands = typer.Typer()
HOST = "berth-"  # what stands before a job's id in the host names of the configuration
WITH_VALUE = frozenset("BbcDEeFIiJLlmOoPpQRSWw")  # options of ssh that have one
# The host key is new each time: the way to the job is Berth's own, and that is checked by its certificate and the token.
OPTIONS = {
    "User": "berth",
    "StrictHostKeyChecking": "no",
    "UserKnownHostsFile": "/dev/null",
    "LogLevel": "ERROR",
}


@commands.command(rich_help_panel="Steer")
def shell(ctx: typer.Context, job: JobId = None) -> None:
    """Open a terminal in a running job or session; with -- run a command there.

    berth shell 3f2a -- nvidia-smi
    """
    command = [shlex.join(ctx.obj)] if ctx.obj else []
    terminal = ["-t"] if command and sys.stdin.isatty() else []
    _become_ssh([*terminal], _running(job), command)


@commands.command(rich_help_panel="Steer")
def ssh(
    ctx: typer.Context,
    job: JobId = None,
    config: Annotated[bool, typer.Option("--config", help="Lines for ~/.ssh/config, for all jobs")] = False,
) -> None:
    """Connect to a running job or session with ssh; what follows -- is ssh's: its options, then a command.

    berth ssh 3f2a -- nvidia-smi; berth ssh --config >> ~/.ssh/config, then: ssh berth-3f2a, rsync, VS Code
    """
    if config:
        say("\n".join([f"Host {HOST}*", *(f"  {name} {value}" for name, value in _settings().items())]))
        return
    options, command = split(list(ctx.obj or ()))
    _become_ssh(options, _running(job), command)


@commands.command(rich_help_panel="Steer")
def forward(
    job: Annotated[str, typer.Argument(help="Id, part of it, or name", autocompletion=complete_job)],
    ports: Annotated[list[str], typer.Argument(metavar="PORT...", help="Port of the job, or HERE:THERE")],
) -> None:
    """Forward ports of a running job or session to this machine, until Ctrl+C.

    berth forward 3f2a 6006
    """
    pairs = [_pair(text) for text in ports]
    chosen = _running(job)
    for here, there in pairs:
        remark(f"http://localhost:{here} leads to port {there} of {chosen.short_id} {safe(chosen.name)}.")
    remark("Ctrl+C ends it.")
    words = [word for here, there in pairs for word in ("-L", f"{here}:127.0.0.1:{there}")]
    _become_ssh(["-N", "-o", "ExitOnForwardFailure=yes", *words], chosen, [])


@commands.command(hidden=True)
def connect(job: Annotated[str, typer.Argument(help="Id of a job")]) -> None:
    """Pass the bytes of an SSH connection on; what ssh runs as its ProxyCommand."""
    from berth.cli.choosing import connect as sign_in
    from berth.cli.choosing import find_job
    from berth.client.shells import open_shell, relay

    berth = sign_in()
    relay(open_shell(berth, find_job(berth, job.removeprefix(HOST)).id))


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide what is given to ssh into its options and the command that follows them.

    One word is a line for the job's shell, as ssh has it; several arrive in the job as they were given.
    """
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in {"-", "--"}:
        flags = words[at][1:]
        first = next((index for index, flag in enumerate(flags) if flag in WITH_VALUE), None)
        # The value is the rest of the word, or the next word.
        at += 2 if first is not None and first == len(flags) - 1 else 1
    command = list(words[at:])
    if command[:1] == ["--"]:
        command = command[1:]
    return list(words[:at]), [shlex.join(command)] if len(command) > 1 else command


def _pair(text: str) -> tuple[int, int]:
    here, _, there = text.partition(":")
    ports = [here, there or here]
    if not all(port.isascii() and port.isdigit() and 0 < int(port) < 65536 for port in ports):
        raise WrongUse(
            f"{text!r} is no port; give one such as 6006, or 8080:80 for port 80 of the job at 8080."
        )
    return int(ports[0]), int(ports[1])


def _running(text: str | None) -> "Job":
    """The named job, else the caller's newest that runs.

    Raises:
        BerthError: there is no such job, or it does not run.
    """
    from berth.cli.choosing import connect as sign_in
    from berth.cli.choosing import newest
    from berth.client import Conflict

    job = newest(sign_in(), text, ("running",), "None of your jobs is running.")
    if job.state != "running":
        raise Conflict(f"Job {job.short_id} is {job.state}; a shell opens while it is running.")
    return job


def _settings() -> dict[str, str]:
    here = [sys.executable, "-P", "-m", "berth.cli", "connect"]  # ssh runs it in any folder
    line = subprocess.list2cmdline(here) if os.name == "nt" else shlex.join(here)
    return {"ProxyCommand": f"{line.replace('%', '%%')} %n", **OPTIONS}


def _become_ssh(options: Sequence[str], job: "Job", command: Sequence[str]) -> NoReturn:
    """Run ssh to a job; its exit status is ours.

    Raises:
        BerthError: there is no ssh here.
    """
    from berth.client import BerthError

    program = shutil.which("ssh")
    if program is None:
        raise BerthError("There is no ssh on this machine; install OpenSSH's client.")
    ours = [word for name, value in _settings().items() for word in ("-o", f"{name}={value}")]
    words = [program, *ours, *options, f"{HOST}{job.short_id}", *command]
    sys.stdout.flush()
    if os.name == "nt":  # exec there returns to the shell before the program has ended
        raise typer.Exit(subprocess.call(words))  # noqa: S603 -- the user's own program
    os.execv(program, words)  # noqa: S606 -- as above
