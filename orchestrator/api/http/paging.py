"""Paging by cursor: stable while rows are added and removed, and every page costs the same."""

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import urlencode

import orjson
from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from pydantic import BaseModel, Field

from orchestrator.exceptions import Malformed, Sentence

LARGEST_PAGE = 500

T = TypeVar("T")
M = TypeVar("M", bound=Model)


class Page(BaseModel, Generic[T]):
    """One page of a list; ``next`` and ``previous`` are addresses, null at the ends."""

    next: str | None
    previous: str | None
    results: list[T]


def whole(kind: type[Page[T]], results: list[T]) -> Page[T]:
    """The only page of a list that is always short."""
    return kind(next=None, previous=None, results=results)


class Paging(BaseModel):
    """The query parameters of every list."""

    limit: Annotated[int, Field(ge=1, le=LARGEST_PAGE)] = 50
    cursor: Annotated[str, Field(max_length=1000)] | None = None


def page(
    kind: type[Page[T]],
    request: HttpRequest,
    rows: QuerySet[M],
    paging: Paging,
    *,
    show: Callable[[M], T],
    ordering: str = "-pk",
) -> Page[T]:
    """One page of ``rows``.

    Args:
        kind: ``Page`` of what ``show`` returns; any other class would be validated a second time by ninja.
        show: makes the answer's item from a row.
        ordering: a column that is never null, with ``-`` for descending; the primary key breaks ties.

    Raises:
        Malformed: this API did not issue the cursor.
    """
    return page_together(
        kind, request, rows, paging, show=lambda items: [show(row) for row in items], ordering=ordering
    )


def page_together(
    kind: type[Page[T]],
    request: HttpRequest,
    rows: QuerySet[M],
    paging: Paging,
    *,
    show: Callable[[list[M]], list[T]],
    ordering: str = "-pk",
) -> Page[T]:
    """Like ``page``, with a ``show`` that makes all items of the page at once, so that they share queries."""
    field, descending = ordering.lstrip("-"), ordering.startswith("-")
    backward, at = _read_cursor(paging.cursor)
    if at is not None:
        rows = _beyond(rows, field, at, down=descending != backward)
    sign = "-" if descending != backward else ""
    try:
        items = list(rows.order_by(f"{sign}{field}", f"{sign}pk")[: paging.limit + 1])
    except (ValueError, TypeError, ValidationError) as error:  # a value of another type than the column's
        raise _wrong_cursor() from error
    more = len(items) > paging.limit
    items = items[: paging.limit]
    if backward:
        items.reverse()
    has_next = bool(items) and (more or backward)
    has_previous = bool(items) and (more if backward else at is not None)
    return kind(
        next=_address(request, field, items[-1], backward=False) if has_next else None,
        previous=_address(request, field, items[0], backward=True) if has_previous else None,
        results=show(items),
    )


def chosen_ordering(name: str, allowed: Mapping[str, str]) -> str:
    """The column that an ``ordering`` parameter names.

    Args:
        allowed: column by public name.

    Raises:
        Malformed: not one of the allowed names.
    """
    column = allowed.get(name.removeprefix("-"))
    if column is None:
        raise Malformed(
            Sentence(
                "There is no ordering {name!r}. Choose one of {allowed}; prefix - to reverse it.",
                name=name[:40],
                allowed=", ".join(allowed),
            ),
            fields={"ordering": [Sentence("choose one of {allowed}", allowed=", ".join(allowed))]},
        )
    return f"-{column}" if name.startswith("-") else column


def _beyond(rows: QuerySet[M], field: str, at: tuple[Any, Any], *, down: bool) -> QuerySet[M]:
    side = "lt" if down else "gt"
    value, key = at
    try:
        if field == "pk":
            return rows.filter(**{f"pk__{side}": key})
        return rows.filter(Q(**{f"{field}__{side}": value}) | Q(**{field: value, f"pk__{side}": key}))
    except (ValueError, TypeError, ValidationError) as error:
        raise _wrong_cursor() from error


def _address(request: HttpRequest, field: str, row: Model, *, backward: bool) -> str:
    value = None if field == "pk" else getattr(row, field)
    cursor = base64.urlsafe_b64encode(orjson.dumps([backward, value, str(row.pk)])).decode().rstrip("=")
    query = {**request.GET.dict(), "cursor": cursor}
    return request.build_absolute_uri(f"{request.path}?{urlencode(query)}")


def _read_cursor(text: str | None) -> tuple[bool, tuple[Any, Any] | None]:
    if text is None:
        return False, None
    try:
        backward, value, key = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, TypeError) as error:
        raise _wrong_cursor() from error
    if not isinstance(backward, bool) or not isinstance(key, str) or isinstance(value, list | dict):
        raise _wrong_cursor()
    return backward, (value, key)


def _wrong_cursor() -> Malformed:
    return Malformed(
        "The cursor is invalid. Use the next and previous addresses of an earlier answer.",
        fields={"cursor": ["is not from an earlier answer"]},
    )
