"""Bytes of a log as text that is safe to show, and as lines of limited length."""

import re

LONGEST_LINE_BYTES = 16 << 10
OSC = r"\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles, links (8), clipboard (52)
STRINGS = r"\x1b[PX^_][^\x1b\n]*(?:\x1b\\)?"
CSI = r"\x1b\[[0-?]*[ -/]*[@-~]?"
OTHER = r"\x1b[ -/]*[0-~]?"
ESCAPES = re.compile(f"{OSC}|{STRINGS}|{CSI}|{OTHER}")
COLOUR = re.compile(r"\x1b\[[0-9;:]{0,64}m")
# To the first column, as a carriage return: how bars of Node and Rust begin their line again.
FIRST_COLUMN = re.compile(r"\x1b\[[01]?G")
FIRST_COLUMN_BYTES = re.compile(rb"\x1b\[[01]?G")
ODD_CONTROLS = {
    code: None for code in [*range(0x01, 0x20), *range(0x7F, 0xA0)] if code not in (9, 10, 13, 27)
}
ODD_CONTROLS |= {0: 0xFFFD}  # type: ignore[dict-item]  # None removes, a number replaces
OVERWRITTEN = re.compile(r"[^\n]*\r(?=[^\r\n])")
LONG_LINE = re.compile(rf"[^\n]{{{LONGEST_LINE_BYTES}}}(?=[^\n])")


def display_text(data: bytes) -> str:
    """Log bytes as text for a page: not yet HTML-escaped, but without anything that controls a terminal.

    Keeps colours (SGR); removes cursor movements, titles, links and clipboard writes.  NUL and invalid UTF-8
    become U+FFFD.  A line overwritten by carriage returns shows its last state.  Lines are split at 16 Ki
    characters.
    """
    return split_long_lines(plain_text(data))


def split_long_lines(text: str) -> str:
    """A text whose lines are split at 16 Ki characters."""
    return LONG_LINE.sub(lambda match: match[0] + "\n", text)


def plain_text(data: bytes) -> str:
    """The same text with its lines as long as they are, in which a value can be found whole."""
    text = data.decode("utf-8", "replace")
    if "\x1b" in text:
        text = ESCAPES.sub(_keep_colour, FIRST_COLUMN.sub("\r", text))
    text = text.translate(ODD_CONTROLS)
    if "\r" in text:
        text = re.sub(r"\r+(?=\n|$)", "", text)
        text = OVERWRITTEN.sub("", text)
    return text


def _keep_colour(match: re.Match[str]) -> str:
    return match[0] if COLOUR.fullmatch(match[0]) else ""


def split_lines(data: bytes, carry: bytes = b"", *, at_returns: bool = False) -> tuple[list[bytes], bytes]:
    """Whole lines without their newline, and the rest, which goes in with the next data.

    Lines are split at 16 KiB, never inside a character, so the rest is never longer.

    Args:
        at_returns: a carriage return, or a move to the first column, also ends a line (states of a progress bar).
    """
    joined = carry + data
    if at_returns:
        joined = FIRST_COLUMN_BYTES.sub(b"\n", joined.replace(b"\r", b"\n"))
    *whole, rest = joined.split(b"\n")
    lines = [part for line in whole for part in _parts(line.rstrip(b"\r"))]
    *parts, rest = _parts(rest)
    return lines + parts, rest


def _parts(line: bytes) -> list[bytes]:
    begin, parts = 0, []
    while len(line) - begin > LONGEST_LINE_BYTES:
        end = split_at(line, begin)
        parts.append(line[begin:end])
        begin = end
    return [*parts, line[begin:]]


def split_at(data: bytes, begin: int) -> int:
    """Where to split a line of over 16 KiB that starts at ``begin``: before a character, never inside it."""
    end = begin + LONGEST_LINE_BYTES
    return end - unfinished_bytes(data[end - 3 : end])


def unfinished_bytes(data: bytes | bytearray) -> int:
    """How many bytes at the end start a UTF-8 character without completing it (0 to 3)."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            needs = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if needs > back and byte < 0xF8 else 0
        if byte < 0x80:
            return 0
    return 0
