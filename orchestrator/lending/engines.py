"""The engine of each pool that has a lender."""

from orchestrator.lending.port import LendingEngine, Refused
from orchestrator.lending.slurm import Partition, Slurm
from orchestrator.models import Lender, LendingSystem


def engine_of(lender: Lender) -> LendingEngine:
    """The engine that asks a pool's lender.

    Raises:
        Refused: what it needs is not installed.
    """
    if lender.system == LendingSystem.SLURM:
        return Slurm(Partition(lender.partition, lender.account, lender.via, lender.python))
    raise Refused(f"This version of Berth cannot ask {lender.get_system_display()} for devices.")
