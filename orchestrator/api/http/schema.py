"""OpenAPI entries for what is served outside of ninja: the long poll, the document itself, Prometheus."""

from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]  # a part of the OpenAPI document

TAG = "beside REST"
_POLL = [
    {
        "name": "topic",
        "in": "query",
        "required": True,
        "schema": {"type": "array", "items": {"type": "string"}},
        "description": "a topic of the websocket, followed by its `after`",
    },
    {
        "name": "after",
        "in": "query",
        "schema": {"type": "array", "items": {"type": "string"}},
        "description": "the last seq that you have of the topic before it; empty: its whole state",
    },
    {
        "name": "stream",
        "in": "query",
        "schema": {"type": "string"},
        "description": "from the last hello; the counters of another stream are unrelated",
    },
]


def describe_outside(prefix: str) -> Schema:
    """OpenAPI path entries by address; ``prefix`` is the API's, ending with a slash."""
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


def _operation(name: str, summary: str, kind: str, schema: Schema) -> Schema:
    answer = {"description": "OK", "content": {kind: {"schema": schema}}}
    return {
        "operationId": name,
        "summary": summary,
        "tags": [TAG],
        "responses": {200: answer},
        "security": [{"TokenOrSession": []}],
    }
