"""Carries one attempt through its life on a node: brings it there, starts it, follows it, and brings back what it left."""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from orchestrator.links.gang import Gang
from orchestrator.links.lease import NodeLease
from orchestrator.links.mirror import Mirror
from orchestrator.nodes.places import Places
from orchestrator.nodes.port import Port
from orchestrator.nodes.runs import Order
from orchestrator.store.layout import JobFolder
from orchestrator.supervisor.liveness import Liveness
from orchestrator.supervisor.protocol.records import read_record

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.15  # at an attempt that runs
TREES_EVERY_S = 1.0
TREES_PAUSE_PER_COST = 20  # at most a twentieth of a core for each side, however many files a job has
OVER = frozenset({Liveness.ENDED, Liveness.LOST})


class LinkedAttempt:
    """One attempt: one thread calls ``turn`` repeatedly, while large files travel in ``carriers``."""

    def __init__(
        self,
        port: Port,
        order: Order,
        folder: JobFolder,
        places: Places,
        carriers: ThreadPoolExecutor,
        lease: NodeLease,
        gang: Gang | None = None,
    ) -> None:
        self._port = port
        self._order = order
        self._places = places
        self._carriers = carriers
        self._lease = lease
        self._gang = gang
        self._carrying: Future[None] | None = None
        self.mirror = Mirror(port, order, folder, gang)
        self.copy = self.mirror.copy
        self._started = self.copy.folder.supervisor.exists()
        self._state = Liveness.NEVER_STARTED
        self._looked_at = 0.0  # monotonic
        self._trees_at = 0.0
        self._all_is_here = False
        self.is_over = False  # nothing is left to be done

    def turn(self, secrets: Callable[[], Mapping[str, str]]) -> None:
        """Do what is to be done now.

        Args:
            secrets: reads the secrets of the attempt, where it is to be started.

        Raises:
            OSError: the node does not answer, or a disk has no room; the next turn goes on from here.
        """
        if not self.copy.take():
            self.is_over = self.copy.is_over
            return
        if self._started and time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = time.monotonic()
        self._land()
        if self._started:
            self.mirror.send_orders()
            if self.copy.takes_leftovers():
                self._port.end_leftovers(self._order)
        elif self._carrying is None:
            self._begin(secrets)
        look = self._port.look(self._order)
        self._started = self._started or look.state != Liveness.NEVER_STARTED
        self.mirror.pull_attempt(look)
        self._note(self._judge(look.state))

    def _land(self) -> None:
        """See whether what was carried has arrived.

        Raises:
            OSError: it has not; it is carried again.
        """
        if self._carrying is not None and self._carrying.done():
            carried, self._carrying = self._carrying, None
            carried.result()

    def _begin(self, secrets: Callable[[], Mapping[str, str]]) -> None:
        if (record := self.copy.forestalled()) is not None:
            self._port.forestall(self._order, record)
        elif self._gang is None or self._gang.may_start(self._order.part):
            self._carry(partial(self._bring, secrets()))

    def _carry(self, act: Callable[[], None]) -> None:
        self._carrying = self._carriers.submit(act)

    def _bring(self, secrets: Mapping[str, str]) -> None:
        record = read_record(self.copy.folder.launch)
        if record is None:
            return
        if self._gang is not None:
            meeting = self._gang.meeting(self._port, self._order.part)
            if meeting is None:
                return  # the node of rank 0 has yet to choose
            record["meeting"] = {name: meeting[name] for name in ("address", "port")}
        self.mirror.push()
        self.copy.lease()
        grant = self._lease.grant()  # now, since bringing everything may take longer than a lease
        if grant is None:
            return
        if reason := self._port.start(self._order, record, self._places, secrets, grant):
            logger.warning("%s", reason)

    def _bring_back(self) -> None:
        """Bring all that the run left, and last the word that it is over: who reads the copy then looks no further."""
        if self._gang is not None and not self._order.part and not self._gang.others_are_here():
            self._gang.leaders_end = self.mirror.read_exit() or {}
            if self._gang.others_are_lost():  # a checkpoint of which they have shards must not appear here
                self.mirror.pull_attempt(self._port.look(self._order))
                self.mirror.pull_exit()
                self._all_is_here = True
            return
        self.mirror.pull_attempt(self._port.look(self._order))
        self.mirror.pull_trees(closed=False)
        self.mirror.pull_exit()
        self._all_is_here = True

    def _pull_trees(self) -> None:
        began_s = time.monotonic()
        self.mirror.pull_trees(closed=True)
        took_s = time.monotonic() - began_s
        self._trees_at = began_s + took_s + max(TREES_EVERY_S, TREES_PAUSE_PER_COST * took_s)

    def _note(self, state: Liveness) -> None:
        if state in OVER and not self._all_is_here:
            if self._carrying is None:
                self._carry(self._bring_back)
        else:
            self._state = state
            self.is_over = state in OVER
            if self._carrying is None and state is Liveness.ALIVE and time.monotonic() >= self._trees_at:
                self._carry(self._pull_trees)
        self.copy.note(self._state)

    def _judge(self, state: Liveness) -> Liveness:
        """What a node that lost its disk says of a run that was seen there is not that it never started."""
        return (
            Liveness.LOST
            if state is Liveness.NEVER_STARTED and self.copy.folder.supervisor.exists()
            else state
        )
