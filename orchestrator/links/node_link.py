"""The link of one node: a thread that reports its devices and takes the turns of its attempts."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError, close_old_connections

from orchestrator.devices.types import Holder
from orchestrator.links.attempts import LinkedAttempt
from orchestrator.links.gang import Gangs
from orchestrator.links.lease import NodeLease
from orchestrator.links.packages import to_build, wanted_on
from orchestrator.models import FINAL_STATES, LOCAL_NODE, Attempt, AttemptState, Job, Lease
from orchestrator.nodes.copies import LEASE, Copy
from orchestrator.nodes.places import places_here
from orchestrator.nodes.port import VERSION, Node, Port
from orchestrator.nodes.reports import their_device_id, write_report
from orchestrator.nodes.runs import Order, folder_of
from orchestrator.people import secrets as job_secrets
from orchestrator.supervisor.liveness import Liveness
from orchestrator.supervisor.protocol.records import read_record

logger = logging.getLogger(__name__)

TURN_EVERY_S = 0.05
REPORT_EVERY_S = 0.5
CLEAR_EVERY_S = 10.0
FURNISH_EVERY_S = 2.0
CARRIERS = 4
PAUSE_S = 1.0  # after a node did not answer
FAILURES_BEFORE_LOSS = 2


class NodeLink(threading.Thread):
    """Serves one node until it is stopped, whether the node answers or not."""

    def __init__(
        self, name: str, connect: Callable[[], Port], stopping: threading.Event, gangs: Gangs
    ) -> None:
        super().__init__(name=f"link to {name}", daemon=True)
        self._name = name
        self._connect = connect
        self._stopping = stopping
        self._gangs = gangs
        self._port: Port | None = None
        self._node: Node | None = None
        self._linked: dict[Order, LinkedAttempt] = {}
        self._carriers = ThreadPoolExecutor(CARRIERS, thread_name_prefix=f"carrier to {name}")
        self._places = places_here(settings.HOME.root)
        self._lease = NodeLease(settings.HOME.nodes / f"{name}.lease", settings.ENVIRONMENT.node_lease_s)
        self._reported_at = 0.0  # monotonic
        self._cleared_at = 0.0
        self._renewed_at = 0.0
        self._furnished_at = 0.0
        self._packages: tuple[str, ...] = ()  # names of environments that the node has
        self._refused: Mapping[str, str] = {}  # why it cannot have others
        self._failures = 0  # in a row
        self._problem = ""
        self._problems: dict[Order, str] = {}

    def run(self) -> None:
        while not self._stopping.wait(TURN_EVERY_S):
            try:
                self.turn()
                self._failures = 0
                self._tell("")
            except OSError as error:
                # It may answer again as another version, and what runs there may be given up before.
                self._node, self._cleared_at = None, 0.0
                self._tell(f"The server {self._name} does not answer: {error}")
                self._give_up_unleased()
                self._stopping.wait(PAUSE_S)
            except DatabaseError as error:
                close_old_connections()
                self._tell(f"The link waits for the database: {error}")
                self._stopping.wait(PAUSE_S)
            except Exception:  # the link must survive any error; the log gets the traceback
                logger.exception("A turn of the link to %s failed; retrying", self._name)
                self._give_up_unleased()
                self._stopping.wait(PAUSE_S)
        self._carriers.shutdown(wait=False, cancel_futures=True)

    def turn(self) -> None:
        """Report the node's devices where that is due, and take one turn of each of its attempts.

        Raises:
            OSError: the node does not answer.
        """
        if self._port is None:
            self._port = self._connect()
        if self._node is None:
            self._node = self._admitted(self._port.describe())
        if time.monotonic() - self._cleared_at >= CLEAR_EVERY_S:
            self._clear(self._port)
            self._cleared_at = time.monotonic()
        is_here = self._name == LOCAL_NODE  # whose devices the agent reads
        if not is_here and time.monotonic() - self._reported_at >= REPORT_EVERY_S:
            read = self._port.read_devices(self._holders())
            write_report(settings.HOME.nodes, self._node, read, self._packages, self._refused)
            self._reported_at = time.monotonic()
        if time.monotonic() - self._renewed_at >= self._lease.renew_every_s:
            self._lease.renew(self._port)
            self._renewed_at = time.monotonic()
        if not is_here and time.monotonic() - self._furnished_at >= FURNISH_EVERY_S:
            self._furnish(self._port)
            self._furnished_at = time.monotonic()
        orders = self._orders()
        self._linked = {order: linked for order, linked in self._linked.items() if order in orders}
        self._problems = {order: problem for order, problem in self._problems.items() if order in orders}
        for order in orders:
            linked = self._linked.get(order)
            if linked is None:
                folder = settings.HOME.job(order.job)
                gang = self._gangs.of(settings.HOME, order) if orders[order] else None
                linked = LinkedAttempt(
                    self._port, order, folder, self._places, self._carriers, self._lease, gang
                )
                self._linked[order] = linked
            if not linked.is_over:
                self._attend(order, linked)

    def _attend(self, order: Order, linked: LinkedAttempt) -> None:
        """Take the turn of one attempt; its errors, such as a full disk, must not keep others from theirs.

        Raises:
            TimeoutError: the node does not answer.
            DatabaseError: the database does not.
        """
        try:
            linked.turn(partial(_secrets_of, order.job))
        except (TimeoutError, DatabaseError):
            raise
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            if problem != self._problems.get(order):  # once; each turn tries again
                self._problems[order] = problem
                logger.warning("Job %s on %s waits", order.job, self._name, exc_info=True)
        else:
            if self._problems.pop(order, None) is not None:
                logger.warning("Job %s on %s goes on.", order.job, self._name)

    def _furnish(self, port: Port) -> None:
        """Have the node build the packages of jobs that wait; they may start there once these are ready.

        An error of the node's disk is logged: it must not keep its runs from the renewal of their lease.

        Raises:
            TimeoutError: the node does not answer.
        """
        refused = dict(self._refused)
        try:
            self._packages, failed, lacking = port.look_at_packages(wanted_on(self._name))
            refused = dict(failed)
            if lacking and (wanted := to_build(lacking[0])) is not None:
                port.build_packages(wanted)
        except TimeoutError:
            raise
        except OSError as error:
            refused[""] = str(error)
        for key, why in refused.items():
            if self._refused.get(key) != why:  # once
                what = f"the packages {key[:12]}" if key else "packages"
                logger.warning("The server %s cannot have %s: %s", self._name, what, why)
        self._refused = refused

    def _give_up_unleased(self) -> None:
        """Declare the runs lost whose lease has certainly ended, unless the node was asked only once since it answered.

        Our own process may have been stopped for longer than the lease.
        """
        self._failures += 1
        if self._failures < FAILURES_BEFORE_LOSS:
            return
        try:
            for order in self._orders():
                copy = Copy(folder_of(settings.HOME, order), order.nonce)
                within_s = copy.stops_within_s
                if within_s is not None and copy.part_end() is None and self._lease.has_run_out(within_s):
                    copy.note(Liveness.LOST, why=LEASE)
        except (OSError, DatabaseError) as error:
            logger.warning("Jobs of %s cannot be given up yet: %s", self._name, error)
            close_old_connections()

    def _clear(self, port: Port) -> None:
        """End runs that were given up while the node was silent, and remove the files of jobs that are over.

        Nothing starts on the node's devices before: this is the first thing that is done once it answers.
        """
        runs = port.runs()
        live = set(self._orders())
        jobs = {run.order.job for run in runs}
        states = dict(Job.objects.filter(pk__in=jobs).values_list("pk", "state"))
        for run in runs:
            if run.lives and run.order not in live:
                logger.warning("Ending %s on %s, which was given up.", run.order, self._name)
                port.end(run.order)
        for job in jobs:
            if states.get(job) in {None, *FINAL_STATES}:
                port.forget(job)

    def _admitted(self, node: Node) -> Node:
        """The node, if it speaks our language.

        Raises:
            OSError: its version is another one; the text says which.
        """
        if node.version != VERSION:
            raise OSError(
                f"it has another version of Berth (its calls have version {node.version}, ours {VERSION}); install the "
                "same version on both"
            )
        return node

    def _orders(self) -> dict[Order, bool]:
        """The attempts that this node has a part of, and whether others have parts of them too."""
        rows = (
            Attempt.objects.live()
            .exclude(state=AttemptState.CREATED)
            .exclude(node=LOCAL_NODE, nodes=[])
            .values_list("job_id", "number", "nonce", "node", "nodes")
        )
        return {
            Order(job, number, nonce, "" if self._name == first else self._name): bool(nodes)
            for job, number, nonce, first, nodes in rows
            if self._name in (nodes or [first])
        }

    def _holders(self) -> list[Holder]:
        leases = Lease.objects.active().filter(device__node=self._name).select_related("attempt")
        holders = []
        for lease in leases:
            attempt = lease.attempt
            part = "" if attempt.node == self._name else self._name
            order = Order(attempt.job_id, attempt.number, attempt.nonce, part)
            folder = folder_of(settings.HOME, order)
            pid = (read_record(folder.supervisor) or {}).get("pid")
            holders.append(
                Holder(
                    device_id=their_device_id(self._name, lease.device_id),
                    job_id=str(attempt.job_id),
                    attempt=attempt.number,
                    rank=lease.rank,
                    supervisor_pid=pid if isinstance(pid, int) else None,
                    nonce=attempt.nonce,
                )
            )
        return holders

    def _tell(self, problem: str) -> None:
        """Log a problem once, and its end."""
        if problem != self._problem:
            logger.warning("%s", problem or f"The server {self._name} answers again.")
            self._problem = problem


def _secrets_of(job_id: UUID) -> Mapping[str, str]:
    job = Job.objects.select_related("owner").get(pk=job_id)
    return job_secrets.reveal(job.owner, job.spec.secrets)
