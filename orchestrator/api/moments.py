"""Points in time as callers write them: seconds since 1970, or RFC 3339."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

LATEST_S = 1e11  # the year 5138


def read_seconds(value: Any) -> Any:
    """Seconds since 1970 of a time such as 2026-11-21T07:00:00Z; what is a number stays as it is.

    Raises:
        ValueError: neither; pydantic makes it the message of the field.
    """
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        pass
    try:
        # In an address a plus sign that was not encoded arrives as a space.
        moment = datetime.fromisoformat(value.replace(" ", "+") if "T" in value else value)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError("give seconds since 1970, or a time with its zone such as 2026-11-21T07:00:00Z")
    return moment.timestamp()


Moment = Annotated[
    float,
    Field(ge=0, le=LATEST_S, allow_inf_nan=False),
    BeforeValidator(read_seconds),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "format": "date-time"}]}),
]
