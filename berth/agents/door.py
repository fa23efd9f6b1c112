"""The MCP server that offers the tools; needs the extra ``mcp``, so nothing imports this module before it is used."""

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server

from berth import __version__
from berth.agents.looking import Answer, Given, Rest, ToolError
from berth.agents.skill import INSTRUCTIONS
from berth.agents.tools import TOOLS, Tool

LONGEST_WAIT_S = 50
LOOK_EVERY_S = 1.0


def make_server(rest_of: Callable[[Any], Rest]) -> Server[Any]:
    """A server with the tools.

    Args:
        rest_of: how a call reaches REST, from the HTTP request that brought the call (None over stdio).
    """

    listed = types.ListToolsResult(tools=[described(tool) for tool in TOOLS.values()])

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        return listed

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            answer = await _carry_out(rest_of(ctx.request), params.name, params.arguments or {})
        except ToolError as error:
            return types.CallToolResult(
                content=[types.TextContent(type="text", text=str(error))], is_error=True
            )
        text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)], structured_content=answer
        )

    return Server(
        "berth",
        version=__version__,
        instructions=INSTRUCTIONS,
        # Without it the SDK lists all tools at each call, to check the call's headers by the tool's schema.
        get_tool_input_schema=input_schema_of,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def input_schema_of(name: str) -> Mapping[str, Any] | None:
    tool = TOOLS.get(name)
    return tool.input_schema if tool else None


def described(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.does,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=types.ToolAnnotations.model_validate(tool.hints),
    )


async def _carry_out(rest: Rest, name: str, given: Given) -> Answer:
    """Call a tool; one that repeats looks again until it is done or its time is over.

    Raises:
        ToolError: there is no such tool, or the call was refused.
    """
    tool = TOOLS.get(name)
    if tool is None:
        raise ToolError(f"There is no tool {name[:60]!r}; there are {', '.join(TOOLS)}.")
    tool.check(given)
    deadline = time.monotonic() + min(LONGEST_WAIT_S, given.get("seconds", LONGEST_WAIT_S))
    while True:
        answer = await anyio.to_thread.run_sync(partial(tool.act, rest, given))
        if not tool.repeats or answer["done"] or time.monotonic() >= deadline:
            return answer
        await anyio.sleep(LOOK_EVERY_S)


async def serve_stdio(rest: Rest) -> None:
    """Serve one client over standard input and output, until it closes them."""
    server = make_server(lambda _: rest)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
