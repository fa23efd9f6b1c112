"""Every small file protocol, cut after each of its operations, with and without what was not synced.

Bundles, checkpoints and metric columns have theirs in tests/store.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.store.files.durable import write_durably
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.orders import OrderBook, order_stop
from orchestrator.supervisor.protocol.records import read_record, write_record
from tests.chaos.lost_writes import LOSSES, Disk, PowerCut

MOST_OPERATIONS = 30


def cut_everywhere(
    folder: Callable[[int], Path],
    write: Callable[[Path], object],
    check: Callable[[Path, bool, str], None],
    patch: pytest.MonkeyPatch,
) -> int:
    """Run ``write`` once for each of its operations and each loss; returns how many operations it has."""
    for stop_after in range(1, MOST_OPERATIONS):
        for loss in LOSSES:
            place = folder(stop_after * len(LOSSES) + LOSSES.index(loss))
            disk = Disk(place, stop_after)
            finished = True
            with disk.watching(patch):
                try:
                    write(place)
                except PowerCut:
                    finished = False
            disk.lose(loss)
            check(place, finished, f"cut after {stop_after}, lost {loss}")
        if finished:
            return stop_after - 1
    raise AssertionError("it does not end")


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[[int], Path]:
    """A new folder with an older file, record and order in it."""

    def make(number: int) -> Path:
        folder = tmp_path / str(number)
        AttemptFolder(folder).orders.mkdir(parents=True)
        (folder / "file").write_bytes(b"old")
        write_record(folder / "record.json", {"value": "old"})
        return folder

    return make


def test_a_durable_file_is_the_old_one_or_the_new_one(make_folder, monkeypatch):
    def check(folder: Path, finished: bool, when: str) -> None:
        found = (folder / "file").read_bytes()
        assert found in ({b"new"} if finished else {b"old", b"new"}), when

    count = cut_everywhere(
        make_folder, lambda folder: write_durably(folder / "file", b"new"), check, monkeypatch
    )

    assert count == 4  # open, sync, rename, sync of the folder


def test_a_record_is_the_old_one_or_the_new_one(make_folder, monkeypatch):
    def check(folder: Path, finished: bool, when: str) -> None:
        found = (read_record(folder / "record.json") or {}).get("value")
        assert found in ({"new"} if finished else {"old", "new"}), when

    def write(folder: Path) -> None:
        write_record(folder / "record.json", {"value": "new"})

    assert cut_everywhere(make_folder, write, check, monkeypatch) == 4


def test_an_order_is_there_or_not_and_never_a_part(make_folder, monkeypatch):
    def check(folder: Path, finished: bool, when: str) -> None:
        orders = [read_record(path) for path in sorted(AttemptFolder(folder).orders.glob("*.json"))]
        whole: Mapping[str, Any] = {"order": "stop", "reason": "cancel"}
        assert all(order is not None and whole.items() <= order.items() for order in orders), when
        assert len(orders) == 1 or not finished, when
        OrderBook(AttemptFolder(folder))  # whatever lies there, a supervisor can look at it

    def write(folder: Path) -> None:
        order_stop(AttemptFolder(folder), "cancel", 5.0)

    assert cut_everywhere(make_folder, write, check, monkeypatch) >= 3
