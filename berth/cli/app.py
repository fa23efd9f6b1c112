"""The command ``berth``. What a command does is imported when it runs, so that each one starts fast."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from berth import __version__
from berth.cli import (
    account_commands,
    agent_commands,
    device_commands,
    federated_commands,
    fetch_commands,
    look_commands,
    model_commands,
    server_commands,
    service_commands,
    session_commands,
    share_commands,
    shell_commands,
    steer_commands,
    submit_commands,
    sweep_commands,
)
from berth.cli.options import Json
from berth.cli.printing import say, show_error, show_json
from berth.shared.arguments import WrongUse, first_word, split_at_dashes, with_dashes

if TYPE_CHECKING:
    from berth.client import BerthError

CANNOT = 2  # exit status of a command that failed
SCRIPT_ARGUMENTS = frozenset(
    {"run", "again", "resume", "plan", "sweep", "session", "service", "shell", "ssh"}
)
# The parser's class of unknown options and of words too many; typer exports only the class below it.
UsageError: Any = typer.BadParameter.__mro__[1]


class _Commands(TyperGroup):
    """Prints each failure of the client as its sentence."""

    def make_context(self, *words: Any, **options: Any) -> Any:
        try:
            return super().make_context(*words, **options)
        except UsageError as error:
            _show_wrong_use(error)

    def invoke(self, ctx: Any) -> Any:
        from berth.client import BerthError, NotSignedIn
        from berth.client.connection import MissingField

        try:
            return super().invoke(ctx)
        except MissingField as error:
            show_error(BerthError(_of_another_version(error)), as_json=_wants_json())
        except BrokenPipeError:
            raise  # typer ends the command quietly
        except OSError as error:
            show_error(BerthError(_about_a_file(error)), as_json=_wants_json())
        except NotSignedIn as error:
            show_error(_how_to_sign_in(error), as_json=_wants_json())
        except BerthError as error:
            show_error(error, as_json=_wants_json())
        except WrongUse as error:
            show_error(BerthError(str(error)), as_json=_wants_json())
        except UsageError as error:
            _show_wrong_use(error)
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
    sweep_commands,
    session_commands,
    look_commands,
    server_commands,
    steer_commands,
    shell_commands,
    fetch_commands,
    model_commands,
    federated_commands,
    service_commands,
    device_commands,
    account_commands,
    share_commands,
    agent_commands,
    server_commands,
):
    app.add_typer(subject.commands)


@app.callback()
def overview(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Version of this command")] = False,
    as_json: Json = False,
) -> None:
    if version:
        if as_json:
            show_json({"version": __version__})
        else:
            say(f"berth {__version__}")
        raise typer.Exit
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


def _show_wrong_use(error: Any) -> NoReturn:
    """Explain a command line that does not fit the command: as JSON if asked for, else as typer does.

    Raises:
        UsageError: for people, who see how the command is used as well.
        Exit: after the error was printed as JSON.
    """
    if hint := _hint_of_dashes(error):
        error.message = f"{error.message}. {hint}"
        error.possibilities = None  # similar names of ours distract from what is meant
    if not _wants_json():
        raise error
    from berth.client import BerthError

    show_error(BerthError(error.format_message()), as_json=True)
    raise typer.Exit(CANNOT)


def _hint_of_dashes(error: Any) -> str:
    """Say how arguments reach the script, if a command line without -- would be right with one."""
    from berth.cli.programs import is_program

    ctx = error.ctx
    if ctx is None or ctx.info_name not in SCRIPT_ARGUMENTS or isinstance(error, typer.BadParameter):
        return ""
    given = sys.argv[1:]
    if "--" in given or ctx.info_name not in given:
        return ""
    own = {name: not getattr(one, "is_flag", False) for one in ctx.command.params for name in one.opts}
    own |= {name: False for one in ctx.command.params for name in one.secondary_opts}
    own |= dict.fromkeys(ctx.help_option_names, False)
    words = given[given.index(ctx.info_name) :]
    at = first_word(words, own)
    if ctx.info_name == "run" and at is not None and not Path(words[at]).exists():
        if Path(script := f"{words[at]}.py").is_file():
            meant = with_dashes([*words[:at], script, *words[at + 1 :]], own)
            return f"Was {script} meant? berth {shlex.join(meant)}"
        if is_program(words[at]):
            return f"A program comes after --: berth {shlex.join([*words[:at], '--', *words[at:]])}"
    meant = with_dashes(words, own)
    return f"Arguments of the script come after --: berth {shlex.join(meant)}" if "--" in meant else ""


def _of_another_version(error: AttributeError) -> str:
    return (
        f"The server's answer has no {error.name!r}. It is of another version than this command ({__version__}); "
        "install the version of the server, or update the server."
    )


def _about_a_file(error: OSError) -> str:
    """What the system said about a file or folder here."""
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}." if error.filename is not None else f"{reason}."


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
