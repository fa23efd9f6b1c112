"""A page's HTML without the white space that only lays out its template."""

import re
from typing import Protocol

INLINE = "a|b|bdi|button|code|i|kbd|label|span|strong|svg|time|use"
AROUND_BLOCKS = re.compile(rf" ?(<(?!/?(?:{INLINE})\b)[^>]*>) ?")


class Answer(Protocol):
    @property
    def content(self) -> bytes: ...


def html_of(answer: Answer) -> str:
    """The HTML of an answer with words one space apart, as a browser lays it out."""
    html = re.sub(r"(<[^<>]*?) >", r"\1>", " ".join(answer.content.decode().split()))
    html = AROUND_BLOCKS.sub(r"\1", html)
    html = re.sub(r"((?:^|[ >])<[a-z][^<>]*>) ", r"\1", html)  # a second space in a row
    return re.sub(r" (</\w+>)(?=[ <])", r"\1", html)
