"""Tables as CSV that a spreadsheet reads as text and numbers, never as formulas (T21)."""

import csv
import io
from collections.abc import Iterable, Sequence

_BEGINS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_csv(header: Sequence[str] | None, rows: Iterable[Sequence[object]]) -> str:
    """RFC 4180; what would begin a formula gets an apostrophe before it, numbers stay numbers.

    None for ``header`` writes more rows of a table that was begun before.
    """
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_MINIMAL)
    if header is not None:
        writer.writerow(header)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return text.getvalue()


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, int | float):
        return value
    text = str(value).replace("\0", "")
    # Spreadsheets pass over blanks before they look for a formula.
    return f"'{text}" if text.lstrip(" ").startswith(_BEGINS_A_FORMULA) else text
