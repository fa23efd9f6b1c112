"""Production's side of the scheduler: snapshot, the pure ``decide``, and what follows from its answer."""

from orchestrator.placement.passes import run_pass
from orchestrator.placement.snapshot import snapshot
from orchestrator.placement.starting import start
from orchestrator.placement.turns import OldTerm, next_term

__all__ = ["OldTerm", "next_term", "run_pass", "snapshot", "start"]
