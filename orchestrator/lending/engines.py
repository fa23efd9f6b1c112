"""The engine of each pool that has a lender."""

from orchestrator.lending.kubernetes_jobs import KubernetesJobs, Namespace
from orchestrator.lending.port import LendingEngine
from orchestrator.lending.slurm import Partition, Slurm
from orchestrator.models import Lender, LendingSystem


def engine_of(lender: Lender) -> LendingEngine:
    """The engine that asks a pool's lender.

    Raises:
        Refused: what it needs is not installed.
    """
    if lender.system == LendingSystem.SLURM:
        return Slurm(Partition(lender.partition, lender.account, lender.via, lender.python))
    return KubernetesJobs(Namespace(lender.partition or "default", lender.image, lender.python or "python"))
