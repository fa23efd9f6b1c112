"""Writing JSON: times in UTC with Z, and never NaN."""

from typing import Any

import orjson
from django.http import HttpRequest
from ninja.renderers import BaseRenderer


class JsonRenderer(BaseRenderer):
    """orjson writes NaN and infinities as null, so an answer is JSON whatever a job reported (B47)."""

    media_type = "application/json"

    def render(self, request: HttpRequest, data: Any, *, response_status: int) -> bytes:
        return orjson.dumps(data, option=orjson.OPT_UTC_Z)
