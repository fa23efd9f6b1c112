"""Scheduling passes: read a snapshot, ask the pure ``decide``, and apply its answer."""

from orchestrator.scheduler.passes.fewer_devices import fit_to_pools
from orchestrator.scheduler.passes.restrictions import BookedDevices, booked_now
from orchestrator.scheduler.passes.scheduling_pass import POLICY, run_pass
from orchestrator.scheduler.passes.snapshot import look, snapshot
from orchestrator.scheduler.passes.start_estimates import calibration
from orchestrator.scheduler.passes.starting import start
from orchestrator.scheduler.passes.terms import OldTerm, next_term, next_wake_at

__all__ = [
    "POLICY",
    "BookedDevices",
    "OldTerm",
    "booked_now",
    "calibration",
    "fit_to_pools",
    "look",
    "next_term",
    "next_wake_at",
    "run_pass",
    "snapshot",
    "start",
]
