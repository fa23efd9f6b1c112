"""Production's side of the scheduler: snapshot, the pure ``decide``, and what follows from its answer."""

from orchestrator.placement.booked import Booked, booked_now
from orchestrator.placement.fewer_devices import fit_to_pools
from orchestrator.placement.passes import POLICY, run_pass
from orchestrator.placement.promises import calibration
from orchestrator.placement.reservations import next_wake_at
from orchestrator.placement.snapshot import look, snapshot
from orchestrator.placement.starting import start
from orchestrator.placement.turns import OldTerm, next_term

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
