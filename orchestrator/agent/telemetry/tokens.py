"""Split a printed line into its shape (the text between its numbers) and its numbers.

Lines of one ``print`` differ only in their numbers, so they share a shape, and the meaning is worked out once per
shape.  Every pattern takes time linear in the length of the line, because no repetition is nested.
"""

import re

LONGEST_LINE = 16 << 10
MOST_NUMBERS = 400
BAR = "\u25ae"  # replaces the graphic of a progress bar, which changes from line to line
NUMBER = "\x01"  # replaces a number in a joined shape

_COLOURS = re.compile(r"\x1b\[[0-9;:?]{0,64}[A-Za-z]")
_FIRST_COLUMN = re.compile(r"\x1b\[[01]?G")
_GROUPS = ",_\u00a0\u202f"  # between thousands
_PADDING = re.compile(r"[ \t]{2,40}+(?=[-+.\d])")
# Digits within a word are text: v2, mAP50-95, gpt-2, layer.0, Acc@1.  The character class at the start makes the search
# fast, so the text that must not come before a number is checked after the number's first character.
# A count may have a total behind its scale: 10k/100k.
_FREE = r"(?<![\w.].)(?:(?<![A-Za-z][-/@].)|(?<=\d[kKM]/.))(?<![A-Za-z]\d-.)(?<![A-Za-z]\d\d-.)"
_THOUSANDS = rf"(?:[{_GROUPS}]\d{{3}})++(?![\d{_GROUPS}])(?:\.\d{{0,60}}+)?"
_DIGITS = r"(?:\.\d{0,60}+)?"
_SIGNED = rf"(?:\d{{1,3}}{_THOUSANDS}|\d{{1,60}}+{_DIGITS}|\.\d{{1,60}}+)"
_AMOUNT = (
    rf"(?:(?<=\d)(?:\d{{0,2}}{_THOUSANDS}|\d{{0,60}}+{_DIGITS})|(?<=[-+]){_SIGNED}|(?<=\.)\d{{1,60}}+)"
    r"(?:[eE][-+]?\d{1,5}+)?(?!\.?\d)"
)
_ODD = r"[-+]?(?:(?<![\w.])|(?<=[-+]))(?:nan|NaN|NAN|[iI]nf(?:inity)?|INF)(?!\w)"
_ODD_WORDS = re.compile(r"N[aA]N|INF(?!O)")
_SPLIT = re.compile(rf"([-+.\d]{_FREE}{_AMOUNT})")
_SPLIT_ODD = re.compile(rf"({_ODD}|[-+.\d]{_FREE}{_AMOUNT})")
# Of "10% | loss 0.5 | acc 0.3" the second part is no graphic, but a value, unless a count follows: "| 10/100 [".
_NO_VALUE = r"(?![^|\[\]]{0,400}?[A-Za-z]{2}[ =:]{1,3}[-+.\d])"
_COUNT_FOLLOWS = r"(?=[^|\[\]]{0,400}\|\s{0,3}[\d.]{1,18}[kMG]?/[\d.?]{1,18}[kMG]?\s?\[)"
_GRAPHIC = rf"%\s{{0,2}}\|(?:{_NO_VALUE}|{_COUNT_FOLLOWS})[^|\[\]]{{0,400}}\|"
_TQDM_BAR = re.compile(_GRAPHIC)
_WHOLE_TQDM_BAR = re.compile(_GRAPHIC + r"[^|\[\]]{1,60}\[[^\[\]]{1,400}\]")
_LINE_BAR = re.compile(r"[━╸╺╍]{2,}+[━╸╺╍ ]*+")
_KERAS_BAR = re.compile(r"\[[=>.]{5,200}\]")
# "Processing |####    | (12/391)" of progress, "[####----] 12/391" of many scripts: a count follows.
_DRAWN_BAR = re.compile(
    r"(?:\|[#\u2588-\u258f\u2591-\u2593 ]{8,200}+\||\[[#=>.\u2588-\u258f\u2591-\u2593 -]{8,200}+\](?:\s[a-z]{1,10}=)?)(?=\s{0,3}\(?\d{1,15}\s?/\s?\d)"
)
# "train |████    | 12/60 [20%] in 1s", with a spinner behind its bar while it moves
_ALIVE_BAR = re.compile(
    r"\|[\u2580-\u259f\u2800-\u28ff ]{3,200}\|(?: [^\s\w|]{1,20})? (?=\d{1,18}/\d{1,18} \[\d)"
)
# " 82% (33 of 40) |######    | Elapsed Time: 0:00:01"
_PROGRESSBAR2 = re.compile(r"(?:\d{1,3}|N/A)% \((\d{1,18}) of (\d{1,18})\) \|[^|]{0,400}\|")
_FULL_WIDTH = str.maketrans(
    "\uff1a\uff0c\uff08\uff09\uff1d\uff5c\uff1b\u3000\u3001\u3010\u3011\uff05", ":,()=|; ,[]%"
)
# Chinese and Japanese are written without spaces: "第3/10轮" is "轮次 3/10", "损失0.42" is "损失 0.42".
_ORDINAL = re.compile(r"第\s?(\d{1,18}(?:\s?/\s?\d{1,18})?)\s?(?:个\s?)?(轮|輪|步|epoch|エポック|ステップ)")
_BEFORE_NUMBER = re.compile(r"([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3])(?=[-+]?\.?\d)")
# "epoch3: loss" is "epoch 3: loss", never a part of a path
_GLUED = re.compile(
    r"(?<![\w/.-])([Ee]poch|[Ss]tep|[Ii]ter)(?:_(?=\d{1,18}:\s)|(?=\d{1,18}(?![\w-]|/\D|\.\w)))"
)
_MAYBE_GLUED = re.compile(r"(?:poch|tep|iter)_?\d")  # several times as fast
_UNGROUPED = str.maketrans("", "", _GROUPS)


def visible_text(line: str) -> str:
    """The final state of a line, without colours and without text overwritten by carriage returns."""
    line = line[:LONGEST_LINE].rstrip("\r\n")
    if not line.isascii():
        line = line.translate(_FULL_WIDTH)
        if "第" in line:
            line = _ORDINAL.sub(r" \2 \1 ", line)
        line = _BEFORE_NUMBER.sub(r"\1 ", line)
    if "\x1b" in line:
        line = _COLOURS.sub("", _FIRST_COLUMN.sub("\r", line))
    if "\r" in line:
        line = line.rpartition("\r")[2]
    if NUMBER in line:
        line = line.replace(NUMBER, "")
    return line.replace("\b", "") if "\b" in line else line


def behind_bar(line: str) -> tuple[str, str] | None:
    """A bar of tqdm and what another writer put on its line; None for all other lines.

    A bar ends without a newline, so what logging writes next stands behind it.
    """
    bar = _WHOLE_TQDM_BAR.search(line) if "%|" in line or "% |" in line else None
    if bar is None or not (behind := line[bar.end() :].strip()) or "%|" in behind:
        return None
    return line[: bar.end()], behind


def split_numbers(line: str) -> tuple[tuple[str, ...], list[str]]:
    """The shape of a line and its numbers as written; the shape has one text more than there are numbers."""
    if ("%|" in line or "% |" in line) and line.lstrip()[:1] != "|":  # else it is a row of a table
        line = _TQDM_BAR.sub(f"%{BAR}", line)
    elif "━" in line:
        line = _LINE_BAR.sub(f"{BAR} ", line)
    elif "[=" in line or ".]" in line:
        line = _KERAS_BAR.sub(BAR, line)
    elif "%] in " in line:
        line = _ALIVE_BAR.sub(f"{BAR} ", line)
    elif "% (" in line:
        line = _PROGRESSBAR2.sub(rf"{BAR} \1/\2 ", line)
    if BAR not in line and "/" in line and ("|" in line or "[" in line):
        line = _DRAWN_BAR.sub(f"{BAR} ", line, 1)
    if "  " in line:
        line = _PADDING.sub(" ", line)
    if _MAYBE_GLUED.search(line) is not None:
        line = _GLUED.sub(r"\1 ", line)
    odd = "nan" in line or "nf" in line or ("N" in line and _ODD_WORDS.search(line) is not None)
    parts = (_SPLIT_ODD if odd else _SPLIT).split(line, MOST_NUMBERS)
    texts, numbers = parts[::2], parts[1::2]
    if "," in texts:
        _space_lists(texts, numbers)
    return tuple(texts), numbers


def _space_lists(texts: list[str], numbers: list[str]) -> None:
    """Put a space behind the comma of "0.5,0.6", which is no decimal comma: both numbers have a point."""
    for at in range(1, len(numbers)):
        if texts[at] == "," and "." in numbers[at - 1] and "." in numbers[at]:
            texts[at] = ", "


def to_float(number: str) -> float:
    """A number of ``split_numbers``; thousands may be grouped."""
    try:
        return float(number)
    except ValueError:
        return float(number.translate(_UNGROUPED))
