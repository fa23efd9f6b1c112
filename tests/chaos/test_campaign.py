"""A short campaign ends clean; the same faults with one control switched off do not."""

from typing import Any

import pytest

from tests.chaos import faults
from tests.chaos.campaign import Result, run
from tests.system.server import Prepared

pytestmark = pytest.mark.slow

QUICK = {"width": 1, "steps": (120, 140)}


def attack(prepared: Prepared, fault: faults.Fault, *without: str, **load: Any) -> Result:
    """One fault on a server without these controls."""
    return run(1, 7, faults=[fault], without=without, prepared=prepared, drain_within_s=25, **load)


def test_nothing_is_lost_doubled_or_left_behind_in_a_campaign(prepared: Prepared) -> None:
    # "walls" is no control: without namespaces, what a dead supervisor leaves is found by its nonce (F14).
    chosen = [
        faults.plant_old_record,
        faults.kill_supervisor,
        faults.flip_bit,
        faults.empty_redis,
        faults.open_socket_from_elsewhere,
        faults.kill_services,
    ]
    result = run(
        6,
        7,
        faults=chosen,
        without=["walls"],
        prepared=prepared,
        width=3,
        kinds=("train", "daemon"),
        most_sweeps=1,
    )

    assert result.findings.lines() == []
    assert result.sweeps
    assert all(each["recovered_s"] is not None for each in result.faults), result.faults


def test_without_the_number_check_an_old_record_ends_a_job(prepared: Prepared) -> None:
    result = attack(prepared, faults.plant_old_record, "number", kinds=("train",), **QUICK)

    assert result.findings.lost


def test_without_manifests_a_flipped_bit_ends_a_job(prepared: Prepared) -> None:
    result = attack(prepared, faults.flip_bit, "manifest", kinds=("train",), **QUICK)

    assert result.findings.lost


def test_without_the_sweep_a_lost_wake_up_loses_a_job(prepared: Prepared) -> None:
    result = attack(prepared, faults.empty_redis, "sweep", width=0)

    assert result.findings.lost


def test_without_the_nonce_a_daemon_outlives_its_attempt(prepared: Prepared) -> None:
    result = attack(prepared, faults.kill_supervisor, "nonce", "walls", kinds=("daemon",), **QUICK)

    assert result.findings.doubled or result.findings.orphans


def test_without_the_origin_check_another_site_gets_a_websocket(prepared: Prepared) -> None:
    result = attack(prepared, faults.open_socket_from_elsewhere, "origin", width=0)

    assert result.findings.intruders
