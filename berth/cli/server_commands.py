"""Commands for the machine that runs the server: they hand over to the server's own command line."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from berth.cli.options import Json

commands = typer.Typer()
PANEL = "Your own server"
SERVER = "berth-gpu[server]"
WITH_TORCH = "berth-gpu[server,training]"

Words = Annotated[list[str] | None, typer.Argument(help="Command of the server, and its arguments")]
File = Annotated[Path, typer.Argument(help="File of the backup")]


@commands.command(rich_help_panel=PANEL)
def demo(
    once: Annotated[bool, typer.Option("--once", help="End when the example has ended")] = False,
) -> None:
    """Start a server here and train the example on it."""
    if importlib.util.find_spec("torch") is None:
        raise _lacking(
            "The example trains with torch, which is not installed beside this command", WITH_TORCH
        )
    become_server("up", "--example", *(["--once"] if once else []))


@commands.command(rich_help_panel=PANEL)
def up() -> None:
    """Start a server here; Ctrl-C stops it, and trainings continue."""
    become_server("up")


@commands.command(rich_help_panel=PANEL)
def down() -> None:
    """Stop the server here and its trainings, which resume at the next start."""
    become_server("down")


@commands.command(rich_help_panel=PANEL)
def status(as_json: Json = False) -> None:
    """Show whether a server runs here and what of it answers."""
    become_server("status", *(["--json"] if as_json else []))


@commands.command(rich_help_panel=PANEL)
def upgrade(
    backup: Annotated[
        Path | None, typer.Option("--backup", help="File for a backup of the database before")
    ] = None,
) -> None:
    """Bring the state of the server here up to date with this version."""
    become_server("upgrade", *(["--backup", str(backup)] if backup else []))


@commands.command(rich_help_panel=PANEL)
def doctor(
    repair: Annotated[bool, typer.Option("--repair", help="Repair what can be repaired")] = False,
    fix: Annotated[bool, typer.Option("--fix", help="Let this machine start sandboxes, as root")] = False,
    hashes: Annotated[bool, typer.Option("--hashes", help="Verify every checkpoint as well")] = False,
) -> None:
    """Check database, folders and processes of the server here."""
    chosen = {"--repair": repair, "--fix": fix, "--hashes": hashes}
    become_server("doctor", *(option for option, wanted in chosen.items() if wanted))


@commands.command(rich_help_panel=PANEL)
def backup(
    file: File,
    without_checkpoints: Annotated[
        bool, typer.Option("--without-checkpoints", help="Without checkpoints, much smaller")
    ] = False,
    database_only: Annotated[
        bool, typer.Option("--database-only", help="Only database, keys and settings")
    ] = False,
) -> None:
    """Back up the server here to one file; jobs keep running."""
    chosen = {"--without-checkpoints": without_checkpoints, "--database-only": database_only}
    become_server("backup", str(file), *(option for option, wanted in chosen.items() if wanted))


@commands.command(rich_help_panel=PANEL)
def restore(file: Annotated[Path, typer.Argument(help="File of a backup, or folder of a snapshot")]) -> None:
    """Restore a backup of the server here, which must be stopped."""
    become_server("restore", str(file))


@commands.command(rich_help_panel=PANEL)
def snapshot(
    folder: Annotated[Path, typer.Argument(help="Folder of all snapshots")],
    keep: Annotated[int, typer.Option("--keep", help="Number of snapshots that stay")] = 14,
) -> None:
    """Write a snapshot of the server here, which shares unchanged files."""
    become_server("snapshot", str(folder), "--keep", str(keep))


@commands.command(
    rich_help_panel=PANEL,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def node(words: Words = None) -> None:
    """Join another server, or list and drain those that joined this one."""
    become_server("node", *(words or ["--help"]))


@commands.command(
    rich_help_panel=PANEL,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def manage(words: Words = None) -> None:
    """Run any other command of the server here, such as changepassword or install_service."""
    become_server(*(words or ["help"]))


def become_server(*words: str) -> NoReturn:
    """Become the server's command line, so that Ctrl-C and the exit status are its own.

    Raises:
        BerthError: the packages of the server are not installed.
    """
    if importlib.util.find_spec("django") is None:
        raise _lacking("The packages of a server are not installed beside this command", SERVER)
    sys.stdout.flush()
    # -P: a folder named training where this was typed must not take the place of ours.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "orchestrator.management", *words])  # noqa: S606


def _lacking(what: str, extra: str) -> Exception:
    from berth.client import BerthError

    return BerthError(
        f"{what}. Install them: pip install '{extra}'. Or try it without installing: "
        f"uvx --torch-backend auto --from '{extra}' berth {' '.join(sys.argv[1:2]) or 'up'}"
    )
