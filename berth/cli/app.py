"""The command ``berth``. What a command does is imported when it runs, so that each one starts fast."""

import sys
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from berth.arguments import WrongUse, split_at_dashes
from berth.cli import (
    account_commands,
    device_commands,
    fetch_commands,
    look_commands,
    steer_commands,
    submit_commands,
)
from berth.cli.options import Json
from berth.cli.printing import show_error

if TYPE_CHECKING:
    from berth.client import BerthError

CANNOT = 2  # exit status of a command that failed
SCRIPT_ARGUMENTS = frozenset({"run", "again", "resume", "plan"})


class _Commands(TyperGroup):
    """Prints each failure of the client as its sentence."""

    def invoke(self, ctx: Any) -> Any:
        from berth.client import BerthError, NotSignedIn

        try:
            return super().invoke(ctx)
        except NotSignedIn as error:
            show_error(_how_to_sign_in(error), as_json=_wants_json())
        except BerthError as error:
            show_error(error, as_json=_wants_json())
        except WrongUse as error:
            show_error(BerthError(str(error)), as_json=_wants_json())
        raise typer.Exit(CANNOT)


app = typer.Typer(
    name="berth",
    cls=_Commands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Submit, watch and control training jobs. Without a command: show devices and queue.",
)
for subject in (
    submit_commands,
    look_commands,
    steer_commands,
    fetch_commands,
    device_commands,
    account_commands,
):
    app.add_typer(subject.commands)


@app.callback()
def overview(ctx: typer.Context, as_json: Json = False) -> None:
    if ctx.invoked_subcommand is not None:
        if ctx.obj and ctx.invoked_subcommand not in SCRIPT_ARGUMENTS:
            raise WrongUse(f"Only {', '.join(sorted(SCRIPT_ARGUMENTS))} take arguments after --.")
        return
    from berth.cli.choosing import connect
    from berth.cli.watching import top

    top(connect(), once=True, as_json=as_json)


def start(words: list[str]) -> None:
    """Run one command; does not return."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without UTF-8 gets ? instead of an error
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    ours, for_script = split_at_dashes(words)
    app(args=ours, obj=for_script, prog_name="berth")


def _wants_json() -> bool:
    return "--json" in split_at_dashes(sys.argv[1:])[0]


def _how_to_sign_in(error: "BerthError") -> "BerthError":
    """Name the command that signs in; the server's own sentence is about headers."""
    from berth.client import Berth, NotSignedIn

    berth = Berth()
    sentence = (
        f"The token for {berth.url} is unknown, expired or revoked. Make another at {berth.url}/account, then run: berth login"
        if berth.token
        else f"You are not logged in at {berth.url}. Make a token at {berth.url}/account, then run: berth login"
    )
    return NotSignedIn(sentence, status=error.status, code=error.code)
