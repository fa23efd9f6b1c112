"""Commands that say which server is meant."""

from typing import Annotated

import typer

from berth.cli.options import Json

commands = typer.Typer()


@commands.command(rich_help_panel="Server")
def login(
    url: Annotated[str | None, typer.Argument(help="such as http://gpu-box:8265")] = None,
    token: Annotated[str | None, typer.Option(help="- reads it from standard input; default: asks")] = None,
    as_json: Json = False,
) -> None:
    """Keep a token for this server."""
    from berth.cli.signing_in import log_in

    log_in(url, token, as_json=as_json)


@commands.command(rich_help_panel="Server")
def logout(as_json: Json = False) -> None:
    """Forget the token."""
    from berth.cli.signing_in import log_out

    log_out(as_json=as_json)
