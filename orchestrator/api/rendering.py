"""Writing JSON: times in UTC with Z, and never NaN."""

from typing import Any

import orjson
from django.http import HttpRequest
from ninja.renderers import BaseRenderer

from orchestrator.spec.plain_text import writable


class JsonRenderer(BaseRenderer):
    """orjson writes NaN and infinities as null, so an answer is JSON whatever a job reported (B47).

    A file's name that is no UTF-8, or a row from before such texts were refused, is shown with a mark in it.
    """

    media_type = "application/json"

    def render(self, request: HttpRequest, data: Any, *, response_status: int) -> bytes:
        try:
            return orjson.dumps(data, option=orjson.OPT_UTC_Z)
        except orjson.JSONEncodeError:
            return orjson.dumps(_writable(data), option=orjson.OPT_UTC_Z)


def _writable(value: Any) -> Any:
    match value:
        case str():
            return writable(value)
        case dict():
            return {_writable(key): _writable(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_writable(inner) for inner in value]
    return value
