"""Production's side of the scheduler: snapshot, the pure ``decide``, and what follows from its answer."""

from orchestrator.scheduler.passes.booked import Booked, booked_now
from orchestrator.scheduler.passes.fewer_devices import fit_to_pools
from orchestrator.scheduler.passes.passes import POLICY, run_pass
from orchestrator.scheduler.passes.promises import calibration
from orchestrator.scheduler.passes.reservations import next_wake_at
from orchestrator.scheduler.passes.snapshot import look, snapshot
from orchestrator.scheduler.passes.starting import start
from orchestrator.scheduler.passes.turns import OldTerm, next_term

__all__ = [
    "POLICY",
    "Booked",
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
