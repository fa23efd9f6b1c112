"""The thread that looks after all pilots, in the process of the links."""

import logging
import threading
from datetime import datetime

from django.conf import settings
from django.db import DatabaseError, close_old_connections
from django.utils import timezone

from orchestrator.lending.kubernetes_jobs import KubernetesJobs, Namespace
from orchestrator.lending.pool_lending import PoolLending, declare_lost
from orchestrator.lending.port import LendingEngine, NoAnswer, Refused
from orchestrator.lending.slurm import Partition, Slurm
from orchestrator.live import wakeups
from orchestrator.models import Attempt, Lender, LendingSystem, Pilot, PilotState

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0


class Lending(threading.Thread):
    """Takes a turn of each pool that has a lender, until it is stopped."""

    def __init__(self, head: str, stopping: threading.Event) -> None:
        super().__init__(name="lending", daemon=True)
        self._head = head
        self._stopping = stopping
        self._problems: dict[str, str] = {}

    def run(self) -> None:
        while not self._stopping.wait(LOOK_EVERY_S):
            try:
                self.turn(timezone.now())
            except DatabaseError as error:
                close_old_connections()
                logger.warning("Lending waits for the database: %s", error)
            except Exception:  # the thread must survive any error; the log gets the traceback
                logger.exception("A turn of lending failed; retrying")

    def turn(self, now: datetime) -> None:
        """Take one turn of each lender; one that does not answer keeps no other from its turn."""
        _repeat_losses()
        for lender in Lender.objects.select_related("pool"):
            try:
                lending = PoolLending(lender, engine_of(lender), self._head, self._token(), now)
                lending.turn()
                lending.give_back_spent()
            except Refused as error:  # not of a request, but of what every call needs
                Lender.objects.filter(pk=lender.pk).update(problem=str(error)[:500], problem_at=now)
                self._tell(lender.pool_id, str(error))
            except NoAnswer as error:
                self._tell(lender.pool_id, str(error))
            else:
                self._tell(lender.pool_id, "")

    def _token(self) -> str:
        return (settings.HOME.nodes / "token").read_text().strip()

    def _tell(self, pool: str, problem: str) -> None:
        if self._problems.get(pool, "") != problem:
            self._problems[pool] = problem
            wakeups.schedule()
            logger.warning("Pool %s: %s", pool, problem or "its lender answers again.")


def engine_of(lender: Lender) -> LendingEngine:
    """The engine that asks a pool's lender.

    Raises:
        Refused: what it needs is not installed.
    """
    if lender.system == LendingSystem.SLURM:
        return Slurm(Partition(lender.partition, lender.account, lender.via, lender.python))
    return KubernetesJobs(Namespace(lender.partition or "default", lender.image, lender.python or "python"))


def _repeat_losses() -> None:
    """An agent that was away when an allocation ended must hear of its jobs' loss as well."""
    live = set(Attempt.objects.live().values_list("node", flat=True))
    if not live:
        return
    held = set(Pilot.objects.open().values_list("name", flat=True))
    ended = Pilot.objects.filter(state=PilotState.ENDED, name__in=live - held)
    declare_lost(set(ended.values_list("name", flat=True)))
