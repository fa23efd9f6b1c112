"""Commands for programs that act for people: the MCP server over standard input, and what to tell them."""

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from berth.cli.options import Json
from berth.cli.printing import say, show_json

if TYPE_CHECKING:
    from berth.agents.looking import Rest
    from berth.client import Berth

commands = typer.Typer()


@commands.command(rich_help_panel="Server")
def mcp(as_json: Json = False) -> None:
    """Serve an agent by MCP over standard input; --json lists the tools instead."""
    from berth.agents.tools import TOOLS
    from berth.cli.choosing import connect

    if as_json:
        show_json([{"name": tool.name, "kind": tool.kind, "does": tool.does} for tool in TOOLS.values()])
        return
    if importlib.util.find_spec("mcp") is None:
        from berth.client import BerthError

        raise BerthError(
            "MCP needs the package mcp. Install it beside this command: pip install 'mcp>=2.3,<3'"
        )
    import anyio

    from berth.agents.door import serve_stdio

    berth = connect()
    berth.me()  # a wrong token fails now, not at the first tool
    anyio.run(serve_stdio, rest_of(berth))


@commands.command(rich_help_panel="Server")
def skill(as_json: Json = False) -> None:
    """Print a SKILL.md that teaches an agent to use Berth."""
    from berth.agents.skill import skill_text

    if as_json:
        show_json({"name": "berth", "text": skill_text()})
    else:
        say(skill_text().rstrip("\n"))


def rest_of(berth: "Berth") -> "Rest":
    """Reach REST through the client."""
    from berth.agents.looking import ToolError
    from berth.client import BerthError

    def call(
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        key: str | None = None,
    ) -> Any:
        known = {name: value for name, value in (params or {}).items() if value is not None}
        headers = {} if key is None else {"Idempotency-Key": key}
        try:
            return berth.send(method, path, params=known or None, json=body, headers=headers).json()
        except BerthError as error:
            raise ToolError(str(error)) from None

    return call
