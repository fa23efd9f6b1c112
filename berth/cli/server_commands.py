"""Commands that say which server is meant."""

from typing import Annotated

import typer

from berth.cli.options import Json

commands = typer.Typer()


@commands.command(rich_help_panel="Server")
def login(
    url: Annotated[str | None, typer.Argument(help="Address, such as http://gpu-box:8265")] = None,
    token: Annotated[
        str | None, typer.Option(help="Token, or - for standard input; default: a question")
    ] = None,
    as_json: Json = False,
) -> None:
    """Store a token for a server."""
    from berth.cli.signing_in import log_in

    log_in(url, token, as_json=as_json)


@commands.command(rich_help_panel="Server")
def logout(as_json: Json = False) -> None:
    """Delete the stored token."""
    from berth.cli.signing_in import log_out

    log_out(as_json=as_json)
