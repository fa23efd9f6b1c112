"""Production's side of the scheduler: snapshot, the pure ``decide``, and what follows from its answer."""

from orchestrator.placement.booked import Booked, booked_now
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
    "look",
    "next_term",
    "next_wake_at",
    "run_pass",
    "snapshot",
    "start",
]
