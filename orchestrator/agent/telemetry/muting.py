"""Lines of settings dumps and tracebacks, which are skipped whatever numbers they contain."""

import re
from dataclasses import dataclass

MOST_LINES = 500  # of one dump: an unclosed bracket must not hide a training

FRAME = '  File "'  # above a line of code, also where no "Traceback" stands above: a syntax error
MOST_CODE_LINES = 3  # below a frame: an indented log may follow it
_CODE = "    "

OPEN_ENDS = (",", "(", "{", "[")  # endings of lines that continue on the next
_ENTRY = re.compile(r"""\s*+(?:['"]?[\w./-]{1,99}['"]?\s?[:=(]|[)\]}])|.*[,(\[{]\s{0,9}$""")

_RECORD = re.compile(
    r"""(?:INFO:tensorflow:)?\s{0,8}\{\s?['"](?:epoch|step|global_step|iter|iteration|[\w/]{0,60}_loss)['"]\s?:\s?\x01,$"""
)  # of one step


@dataclass(slots=True)
class Muting:
    """The dump or traceback that is being skipped."""

    lines: int = 0  # remaining lines that a dump may have
    traceback: bool = False
    code: int = 0  # remaining lines that the code below a frame may have

    @property
    def active(self) -> bool:
        """Whether lines are being skipped."""
        return self.lines > 0 or self.traceback or self.code > 0

    def covers(self, line: str) -> bool:
        """Whether this line belongs to the skipped block; ends the block if it does not."""
        if self.traceback:
            # The frames are indented; the first line that is not is the error.
            self.traceback = line[:1] in (" ", "\t", "")
            return True
        if self.code:
            is_code = line.startswith(_CODE)
            self.code = self.code - 1 if is_code else 0
            if is_code or self.lines <= 0:
                return is_code
        self.lines -= 1
        if line[:1] in (")", "]", "}"):
            self.lines = 0
            return True
        if not _ENTRY.match(line):
            self.lines = 0
            return False
        return True


def opens_dump(whole: str) -> bool:
    """Whether a line leaves a bracket open and entries follow: ``Namespace(lr=0.1,``."""
    text = whole.rstrip()
    if not text.endswith(OPEN_ENDS) or _RECORD.match(text):
        return False
    opened = sum(map(text.count, "([{"))
    return opened > sum(map(text.count, ")]}"))
