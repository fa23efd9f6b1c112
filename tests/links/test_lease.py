"""The lease of a node on both sides: ours never ends before the node's own."""

from pathlib import Path
from typing import Any

import pytest

from orchestrator.links.lease import FOREVER_S, MARGIN_S, SLOWER, NodeLease
from orchestrator.nodes.port import Grant, LocalPort, Moment
from orchestrator.supervisor.linux.processes import boot_id
from orchestrator.supervisor.protocol.lease import clock_s
from orchestrator.supervisor.protocol.records import read_record, write_record


class Line:
    """``Port.renew`` over a line that loses answers, and holds calls back until they are let through."""

    def __init__(self, port: LocalPort, ahead_s: float = 0.0) -> None:
        self.port = port
        self.ahead_s = ahead_s  # of the node's clock before ours
        self.is_down = False
        self.held: list[Grant | None] = []

    def renew(self, given: Grant | None) -> Moment:
        if self.is_down:
            self.held.append(given)
            raise TimeoutError("nobody answers")
        return self.deliver(given)

    def deliver(self, given: Grant | None) -> Moment:
        if given is not None:
            given = Grant(Moment(given.since.boot, given.since.at_s - self.ahead_s), given.length_s)
        now = self.port.renew(given)
        return Moment(now.boot, now.at_s + self.ahead_s)


@pytest.fixture
def there(tmp_path: Path) -> LocalPort:
    return LocalPort("there", tmp_path / "there", "cpu:1")


def end_there(tmp_path: Path) -> float:
    return float(str((read_record(tmp_path / "there" / "lease.json") or {})["until_s"]))


def end_here(lease: NodeLease) -> float:
    return max(lease._ends_s.values())


def renewed(lease: NodeLease, line: Any) -> NodeLease:
    """Ask for the node's moment, and grant a lease from it."""
    lease.renew(line)
    lease.renew(line)
    return lease


@pytest.mark.parametrize("ahead_s", [0.0, 600.0, -600.0], ids=["together", "ahead", "behind"])
def test_lease_ends_there_before_it_ends_here_though_the_clocks_are_ten_minutes_apart(
    there, tmp_path, ahead_s
):
    lease = renewed(NodeLease(tmp_path / "lease", 100), Line(there, ahead_s))

    assert clock_s() + 90 < end_there(tmp_path) <= end_here(lease) <= clock_s() + 100 * SLOWER


def test_call_that_comes_minutes_late_grants_nothing_more(there, tmp_path):
    line: Any = Line(there)
    lease = renewed(NodeLease(tmp_path / "lease", 100), line)
    line.is_down = True
    for _ in range(3):
        with pytest.raises(TimeoutError):
            lease.renew(line)
    end = end_here(lease)

    for given in line.held:  # long afterwards
        line.deliver(given)

    assert end_there(tmp_path) <= end == end_here(lease)


def test_lease_has_run_out_only_after_the_grace_and_a_margin(there, tmp_path):
    lease = renewed(NodeLease(tmp_path / "lease", 0.01), Line(there))

    assert not lease.has_run_out(0)
    lease._ends_s = {since: end - MARGIN_S - 1 for since, end in lease._ends_s.items()}
    assert lease.has_run_out(0)
    assert not lease.has_run_out(60)


def test_process_that_takes_over_keeps_the_end_of_the_lease(there, tmp_path):
    first = renewed(NodeLease(tmp_path / "lease", 100), Line(there))

    assert end_here(NodeLease(tmp_path / "lease", 10)) == end_here(first)


def test_server_that_was_restarted_waits_for_a_whole_lease(there, tmp_path):
    renewed(NodeLease(tmp_path / "lease", 100), Line(there))
    write_record(tmp_path / "lease", {**(read_record(tmp_path / "lease") or {}), "boot_id": "another"})

    assert end_here(NodeLease(tmp_path / "lease", 10)) >= clock_s() + 100


def test_lease_that_never_ends_can_be_made_short_again(there, tmp_path):
    lease = renewed(NodeLease(tmp_path / "lease", 0), Line(there))
    assert end_there(tmp_path) > clock_s() + FOREVER_S / 2

    lease = renewed(NodeLease(tmp_path / "lease", 100), Line(there))

    assert end_there(tmp_path) <= end_here(lease) <= clock_s() + 100 * SLOWER


def test_lease_of_an_earlier_boot_of_the_node_is_not_granted(there, tmp_path):
    there.renew(Grant(Moment("another boot", clock_s()), 100))

    assert not (tmp_path / "there" / "lease.json").exists()
    assert there.renew(None).boot == boot_id()
