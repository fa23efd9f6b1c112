"""Metrics printed as tables: a header and rows, or one name and value per line between two borders."""

import re
from dataclasses import dataclass, field

from orchestrator.agent.telemetry.layouts import Kind, Layout
from orchestrator.agent.telemetry.metric_lines import short_name
from orchestrator.agent.telemetry.named_numbers import MOST_TOTAL, whole_of
from orchestrator.agent.telemetry.tokens import BAR, NUMBER, to_float
from orchestrator.agent.telemetry.vocabulary import (
    EPISODES,
    EPOCHS,
    GLOBAL_STEPS,
    HEADERS,
    ITERATIONS,
    PARTS,
    ROUNDS,
    STEPS,
    is_value,
)

LEAST_COLUMNS, MOST_COLUMNS = 3, 40
MOST_CELLS = 200
MOST_HEADERS = 8
_CLASSES = ("class", "classes")
EDGES = ("|", "\u2502", "\u2503")
_EDGE = re.compile("[|\u2502\u2503]")
_GAP = re.compile(r"\s{2,}|\t")
_SUBHEADER = re.compile(
    r"\s{0,20}[|\u2502\u2503]\s{3,40}[|\u2502\u2503](?:[\w\s():%-]{1,40}[|\u2502\u2503]){1,40}\s{0,9}$"
)
_FENCE = re.compile(r"-{5,}\s{1,4}-{3,}\s{0,9}")
_PAIR = re.compile(r"([^\W\d](?:[^:=|\s]|\s(?!\s)){0,80})\s{2,80}([-+.\w]{1,40})\s{0,9}")
_BOXED = re.compile(rf"\s[\w/.-]{{1,80}}\s{NUMBER}\s")  # "│ loss      0.51234 │" of Ray
_PART_ROW = re.compile(
    rf"[|\u2502\u2503]\s[A-Za-z][\w-]{{0,60}}(?:\s{{1,80}}[|\u2502\u2503]\s{{1,80}}{NUMBER}){{2,4}}\s{{0,80}}[|\u2502\u2503]"
)
_BORDER = re.compile(r"\s{0,9}[-=+\u2500-\u257f\s]{5,}")
_ROW = re.compile(r"\s{0,40}+(?:all\s)?[\s|\u2502:/%GMKs,]*+")
# "mAP50-95): 100%|####", never the "23%  |" of a cell
_BAR_BEHIND = re.compile(rf":?\s{{0,3}}(?<![\d.])(?:\d{{1,3}}|{NUMBER})%(?:\||\s?[━╸{BAR}]).*|{BAR}.*")
_CELL_NUMBER = re.compile(
    r"[-+]?(?:\d[\d,_]{0,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,4})?|[-+]?(?:nan|inf)", re.IGNORECASE
)
_STEP_COLUMNS = ({"#"} | GLOBAL_STEPS, STEPS, ITERATIONS | {"training_iteration"})


@dataclass(slots=True)
class TableRow:
    """The content of one row, or of a whole table of cells."""

    step: int | None = None
    epoch: float | None = None
    total_epochs: int | None = None
    episode: float | None = None
    values: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Tables:
    """The table that is being printed."""

    names: list[str] = field(default_factory=list)  # column names of the last header
    earlier: dict[str, list[str]] = field(
        default_factory=dict
    )  # tables with other headers, by their first column
    fenced: bool = False  # names and values follow in two columns
    parts: list[str] = field(default_factory=list)  # of a run, in the columns of a table of metrics
    section: str = ""
    cells: dict[str, str] = field(default_factory=dict)  # since the last border

    def open(self, line: str) -> None:
        """Take the names of columns; rows follow."""
        names = header_names(line)
        if self.names and names and self.names[0] != names[0] and len(self.earlier) < MOST_HEADERS:
            self.earlier[self.names[0]] = self.names
        self.names = names

    def extend(self, line: str) -> None:
        """Take the second line of the columns' names, right below the first, which many columns may share."""
        cells = [cell.strip() for cell in _EDGE.split(line.strip().strip("".join(EDGES)))]
        self.parts = [cell.lower() for cell in cells[1:] if cell.lower() in PARTS]
        if len(self.parts) != len(cells) - 1:
            self.parts = []
        if len(cells) == len(self.names) > len(set(self.names)):
            both = zip(self.names, cells, strict=True)
            self.names = [short_name("_".join([name, *cell.split()])) for name, cell in both]

    def add_cell(self, line: str, kind: Kind) -> None:
        """Take one name and value, or the title of a section."""
        cells = [cell.strip() for cell in _EDGE.split(line.strip().strip("".join(EDGES)))]
        if len(cells) == 1:
            cells = _GAP.split(cells[0])
        if kind is Kind.SECTION:
            self.section = short_name(cells[0])
        elif len(cells) == 2 and len(self.cells) < MOST_CELLS and _CELL_NUMBER.fullmatch(cells[1]):
            self.cells[short_name(self.section + cells[0])] = cells[1]

    def take_pair(self, line: str) -> bool:
        """Take a name and a value in two columns; False for another line, which ends them unless it is a border."""
        hit = _PAIR.fullmatch(line)
        if hit is None:
            self.fenced = self.fenced and _FENCE.fullmatch(line) is not None
            return False
        if len(self.cells) < MOST_CELLS and _CELL_NUMBER.fullmatch(hit[2]):
            self.cells["_".join(short_name(hit[1]).split())] = hit[2]
        return True

    def fence(self) -> TableRow | None:
        """Begin the two columns, or end them; None if there were none."""
        self.fenced = not self.fenced
        if self.fenced:
            self.cells = {}
            return None
        return self.close()

    def read_part_row(self, line: str) -> TableRow | None:
        """Read a metric's values for all parts of a run."""
        name, *cells = [cell.strip() for cell in _EDGE.split(line.strip().strip("".join(EDGES)))]
        if not self.parts or len(cells) != len(self.parts):
            return None
        return _read_columns([f"{part}_{name}" for part in self.parts], cells)

    def close(self) -> TableRow | None:
        """End the table of cells at its border; None if there was none."""
        cells, self.cells, self.section = self.cells, {}, ""
        return _read_columns(list(cells), list(cells.values())) if cells else None

    def read_row(self, line: str) -> TableRow | None:
        """Read a row below the last header; None if the line does not fit it."""
        line = _BAR_BEHIND.sub("", line).strip().strip("".join(EDGES))
        cells = _EDGE.split(line) if _EDGE.search(line) else line.split()
        cells = [cell.strip().rstrip(":,") for cell in cells]
        # A header that is printed once may have that of a validation behind it.
        tables = self._of_width(len(cells))
        if not tables and "," in line:
            cells = [cell.strip() for cell in line.split(",")]
            tables = self._of_width(len(cells))
        if not self.names or not tables:
            return None
        return _read_columns(next((names for names in tables if _begins(names, cells)), tables[0]), cells)

    def _of_width(self, count: int) -> list[list[str]]:
        return [names for names in (self.names, *self.earlier.values()) if len(names) == count]


def _names_in(line: str) -> list[str]:
    """The words between edges, commas or wide gaps."""
    if _EDGE.search(line):
        return _EDGE.split(line)
    if "," in line:
        names = line.split(",")
        return names if all(len(name.split()) == 1 for name in names) else []  # else it is prose
    return _GAP.split(line)


def _begins(names: list[str], cells: list[str]) -> bool:
    """Whether a row begins as its table says: with the name of a class, else with a number."""
    is_number = _cell_number(cells[0].partition("/")[0]) is not None
    return is_number != (names[0].lower() in _CLASSES)


def header_names(line: str) -> list[str]:
    """The names of a table's columns; empty if the line is not a header."""
    line = _BAR_BEHIND.sub("", line).strip().rstrip(":").strip("".join(EDGES)).strip()
    names = [name.strip() for name in _names_in(line)]
    if not LEAST_COLUMNS <= len(names) <= MOST_COLUMNS or names[0].lower() not in HEADERS:
        return []
    if not all(name and len(name) <= 40 and (name[0].isalpha() or name == "#") for name in names):
        return []
    return [_column_name(name) for name in names]


def read_structure(texts: tuple[str, ...], whole: str) -> Layout | None:
    """The kind of table line that this shape is; None for other lines."""
    numbers = len(texts) - 1
    if numbers == 0 and _FENCE.fullmatch(whole):
        return Layout(Kind.FENCE)
    if numbers == 0 and _BORDER.fullmatch(whole):
        return Layout(Kind.BORDER)
    if numbers <= 1 and whole.strip()[:1] in EDGES:
        cells = _EDGE.split(whole.strip().strip("".join(EDGES)))
        if len(cells) == 2 and not numbers and not cells[1].strip() and cells[0].strip().endswith("/"):
            return Layout(Kind.SECTION)
        if len(cells) == 2 and numbers and not cells[1].strip().strip("\x01"):
            return Layout(Kind.CELL)
        if len(cells) == 1 and numbers and _BOXED.fullmatch(cells[0]) is not None:
            return Layout(Kind.CELL)
    if numbers == 0 and whole.lstrip()[:1] in EDGES and _SUBHEADER.match(whole):
        return Layout(Kind.SUBHEADER)
    if numbers <= 2 and header_names(whole):
        return Layout(Kind.HEADER)
    if numbers > 1 and _PART_ROW.fullmatch(whole.strip()) is not None:
        return Layout(Kind.PART_ROW)
    of_all = numbers == LEAST_COLUMNS - 1 and whole.lstrip().startswith("all ")  # classes
    if (numbers >= LEAST_COLUMNS or of_all) and all(_ROW.fullmatch(text) for text in texts):
        return Layout(Kind.ROW)
    return None


def _column_name(name: str) -> str:
    return short_name("_".join(name.rpartition("(")[2].rstrip(")").split()))


def _read_columns(names: list[str], cells: list[str]) -> TableRow:
    row, ranks = TableRow(), len(_STEP_COLUMNS)
    for name, cell in zip(names, cells, strict=True):
        word = name.lower().rpartition("/")[2]
        first, slash, last = cell.partition("/")
        number = _cell_number(first)
        if number is None:
            continue
        rank = next((at for at, words in enumerate(_STEP_COLUMNS) if word in words), None)
        if word in EPOCHS or word == "e":
            row.epoch = number
            row.total_epochs = (
                whole_of(last, MOST_TOTAL) if slash and last.isascii() and last.isdigit() else None
            )
        elif word in EPISODES or word in ROUNDS:
            row.episode = number
        elif rank is not None and not name.startswith(("eval/", "val/")):
            if rank < ranks and number.is_integer():
                row.step, ranks = int(number), rank
        elif not slash and is_value(word) and word not in ("class", "time"):
            suffix = "_gb" if cell[-1:] == "G" else ""
            row.values[short_name(name + suffix)] = number
    if row.episode is not None and not row.step is row.epoch is None:
        row.values["episode"] = row.episode
    return row


def _cell_number(cell: str) -> float | None:
    text = cell[:-1] if cell[-1:] in ("G", "%") else cell
    return to_float(text) if _CELL_NUMBER.fullmatch(text) else None
