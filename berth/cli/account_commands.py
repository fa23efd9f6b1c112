"""Commands about a person's account: login, logout, secrets."""

from typing import Annotated

import typer

from berth.cli.options import Json

commands = typer.Typer()
secret_app = typer.Typer(help="Secrets for jobs: list, set, forget.", invoke_without_command=True)
commands.add_typer(secret_app, name="secret", rich_help_panel="Submit")


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


@secret_app.callback()
def secret(ctx: typer.Context, as_json: Json = False) -> None:
    if ctx.invoked_subcommand is None:
        list_secrets(as_json=as_json)


@secret_app.command("list")
def list_secrets(as_json: Json = False) -> None:
    """List the names of your secrets; values are never shown."""
    from berth.cli.secrets import show_secrets

    show_secrets(as_json=as_json)


@secret_app.command("set")
def set_secret(
    name: Annotated[str, typer.Argument(help="Environment variable for jobs")], as_json: Json = False
) -> None:
    """Store a secret; asks for its value, or reads it from standard input."""
    from berth.cli.secrets import keep_secret

    keep_secret(name, as_json=as_json)


@secret_app.command("forget")
def forget_secret(
    name: Annotated[str, typer.Argument(help="Name of the secret")], as_json: Json = False
) -> None:
    """Delete a secret."""
    from berth.cli.secrets import drop_secret

    drop_secret(name, as_json=as_json)
