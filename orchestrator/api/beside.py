"""What is served beside REST's routers, for the schema: ``dashboard.live.polling``, the schema itself, ``orchestrator.api.metrics``."""

from typing import Any

TAG = "beside REST"
_POLL = [
    {
        "name": "topic",
        "in": "query",
        "required": True,
        "schema": {"type": "array", "items": {"type": "string"}},
        "description": "as the websocket's; each is followed by its `after`",
    },
    {
        "name": "after",
        "in": "query",
        "schema": {"type": "array", "items": {"type": "string"}},
        "description": "the seq up to which the topic before it is known; empty: its whole state",
    },
    {
        "name": "stream",
        "in": "query",
        "schema": {"type": "string"},
        "description": "of the last hello: counters of another stream say nothing",
    },
]


def describe_beside(prefix: str) -> dict[str, Any]:
    """Paths of the schema by address; ``prefix`` is that of REST, with a slash at its end."""
    frames = {"type": "array", "items": {"type": "object"}}
    poll = _operation("poll_frames", "The websocket's frames by long poll", "application/json", frames)
    return {
        f"{prefix}poll": {"get": {**poll, "parameters": _POLL}},
        f"{prefix}openapi.json": {
            "get": _operation("openapi_json", "This schema", "application/json", {"type": "object"})
        },
        f"{prefix}docs": {
            "get": _operation("docs", "This schema to browse", "text/html", {"type": "string"})
        },
        "/metrics": {
            "get": _operation("metrics", "For Prometheus; admins", "text/plain", {"type": "string"})
        },
    }


def _operation(name: str, summary: str, kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    answer = {"description": "OK", "content": {kind: {"schema": schema}}}
    return {
        "operationId": name,
        "summary": summary,
        "tags": [TAG],
        "responses": {200: answer},
        "security": [{"TokenOrSession": []}],
    }
