"""Lines that belong to a dump of settings or to a traceback, whatever numbers stand in them."""

import re
from dataclasses import dataclass

MOST_LINES = 500  # of one dump: a bracket that nobody closes must not hide a training

OPEN_ENDS = (",", "(", "{", "[")  # of lines that go on in the next
_ENTRY = re.compile(r"""\s*+(?:['"]?[\w./-]{1,99}['"]?\s?[:=(]|[)\]}])|.*[,(\[{]\s{0,9}$""")


@dataclass(slots=True)
class Muting:
    """What is being passed over."""

    lines: int = 0  # that a dump may still have
    traceback: bool = False

    @property
    def active(self) -> bool:
        """Whether lines are being passed over."""
        return self.lines > 0 or self.traceback

    def covers(self, line: str) -> bool:
        """Whether this line belongs to what is being passed over; ends it where it does not."""
        if self.traceback:
            # The frames are indented; the first line that is not is the error.
            self.traceback = line[:1] in (" ", "\t", "")
            return True
        self.lines -= 1
        if line[:1] in (")", "]", "}"):
            self.lines = 0
            return True
        if not _ENTRY.match(line):
            self.lines = 0
            return False
        return True


def opens_dump(whole: str) -> bool:
    """Whether a line leaves a bracket open behind which entries follow: ``Namespace(lr=0.1,``."""
    text = whole.rstrip()
    if not text.endswith(OPEN_ENDS):
        return False
    opened = sum(map(text.count, "([{"))
    return opened > sum(map(text.count, ")]}"))
