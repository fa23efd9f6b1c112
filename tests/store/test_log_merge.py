"""The logs of all ranks as one, in the order in which their lines were seen."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.store.logs.lines import LineIndex
from orchestrator.store.logs.merged import (
    BLOCK,
    MergedIndex,
    count_merged,
    read_merged,
    search_merged,
)


class Attempt:
    """Logs that grow, and an agent that looks at them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now_s = folder, 1000.0
        self.merged = folder / "merged.idx"
        self.start_agent()

    def start_agent(self) -> None:
        self._indexes: dict[int, LineIndex] = {}
        self._agent = MergedIndex(self.merged)

    def log_of(self, rank: int) -> tuple[Path, Path]:
        return self.folder / f"rank{rank}.log", self.folder / f"rank{rank}.idx"

    def print(self, rank: int, text: str) -> None:
        with self.log_of(rank)[0].open("a") as file:
            file.write(text)

    def look(self, *, after_s: float = 1.0, at_end: bool = False) -> None:
        self.now_s += after_s
        for rank in range(4):
            index = self._indexes.setdefault(rank, LineIndex(*self.log_of(rank)))
            index.extend(self.now_s)
        seen = {rank: index.seen(at_end=at_end) for rank, index in self._indexes.items()}
        self._agent.note(seen, self.now_s, at_end=at_end)

    def read(self, first: int = 0, count: int = 5000) -> list[tuple[int, int, str]]:
        lines = read_merged(self.merged, self.log_of, first, count)
        return [(line.number, line.rank, line.data.decode()) for line in lines]


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def test_lines_come_in_the_order_of_the_looks_with_rank_and_time(attempt: Attempt):
    attempt.print(1, "one a\none b\n")
    attempt.look()
    attempt.print(0, "zero a\n")
    attempt.print(1, "one c\n")
    attempt.look()

    assert attempt.read() == [(0, 1, "one a"), (1, 1, "one b"), (2, 0, "zero a"), (3, 1, "one c")]
    assert attempt.read(-1) == [(3, 1, "one c")]
    assert attempt.read(1, 2) == [(1, 1, "one b"), (2, 0, "zero a")]
    assert read_merged(attempt.merged, attempt.log_of, 3, 1)[0].seen_s == 1002.0


def test_the_last_line_waits_for_its_newline_or_for_the_end(attempt: Attempt):
    attempt.print(0, "whole\nhalf")
    attempt.look()
    assert count_merged(attempt.merged) == 1
    attempt.look(at_end=True)
    attempt.look(at_end=True)
    assert attempt.read() == [(0, 0, "whole"), (1, 0, "half")]


def test_blocks_are_at_most_one_a_second_and_rank(attempt: Attempt):
    for number in range(40):
        attempt.print(0, f"{number}\n")
        attempt.look(after_s=0.25)
    assert attempt.merged.stat().st_size // BLOCK.itemsize <= 11
    attempt.look()
    assert [text for _, _, text in attempt.read()] == [str(number) for number in range(40)]


def test_half_a_block_of_a_crash_is_written_over(attempt: Attempt):
    attempt.print(0, "a\n")
    attempt.look()
    with attempt.merged.open("ab") as file:
        file.write(b"\1" * 7)
    attempt.start_agent()
    attempt.print(2, "b\n")
    attempt.look()
    assert attempt.read() == [(0, 0, "a"), (1, 2, "b")]


def test_a_search_counts_all_ranks_and_pages_by_merged_number(attempt: Attempt):
    for number in range(6):
        attempt.print(number % 2, f"hit {number}\nmiss\n")
        attempt.look()
    found, hits = search_merged(
        attempt.merged, attempt.log_of, "HIT", regex=False, case=False, first=3, limit=2
    )
    assert found.total == 6
    assert [(hit.number, hit.data) for hit in hits] == [(4, b"hit 2"), (6, b"hit 3")]
    assert [line[2] for line in attempt.read(4, 1)] == ["hit 2"]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.booleans()), max_size=25))
def test_every_line_has_one_number_and_keeps_it(tmp_path_factory, steps: list[tuple[int, int, bool]]):
    attempt = Attempt(tmp_path_factory.mktemp("logs"))
    printed: dict[int, list[str]] = {rank: [] for rank in range(4)}
    known: list[tuple[int, int, str]] = []
    for rank, count, restarts in steps:
        for _ in range(count):
            printed[rank].append(f"{rank}.{len(printed[rank])}")
            attempt.print(rank, printed[rank][-1] + "\n")
        if restarts:
            attempt.start_agent()
        attempt.look()
        lines = attempt.read()
        assert lines[: len(known)] == known
        known = lines
    attempt.look(at_end=True)
    lines = attempt.read()
    assert [number for number, _, _ in lines] == list(range(sum(map(len, printed.values()))))
    assert {rank: [text for _, of, text in lines if of == rank] for rank in printed} == printed
    for number in range(0, len(lines), 7):
        assert attempt.read(number, 3) == lines[number : number + 3]
