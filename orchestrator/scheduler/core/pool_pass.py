"""One pass over the queue of one pool."""

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.scheduler.core.backfill import BackfillSlot, soonest
from orchestrator.scheduler.core.decisions import WaitCode
from orchestrator.scheduler.core.ends import End, end_of, limit_end
from orchestrator.scheduler.core.packing import place
from orchestrator.scheduler.core.quota import Quotas
from orchestrator.scheduler.core.room import Room, at_another_time, once_furnished
from orchestrator.scheduler.core.speed import USUAL_CONSTRAINTS
from orchestrator.scheduler.core.types import (
    ANYWHERE,
    Constraints,
    Job,
    LentPool,
    Policy,
    QueuedJob,
    Share,
)

Shape = tuple[int, int | None, Constraints | int | tuple[Constraints, str]]


def shape_of(job: Job) -> Shape:
    """The properties that decide which devices a job fits."""
    if job.work:  # its neighbours decide as well
        return (job.gpus, job.memory_bytes, (job.constraints, job.work))
    return (job.gpus, job.memory_bytes, USUAL_CONSTRAINTS.get(id(job.constraints), job.constraints))


class PoolPass:
    """Serves jobs in the given order; a job gets all of its devices or none.

    The first job that must wait for devices becomes the head: the devices of its slot are held, and later jobs get
    them only if their time limit ends them before the head could start.
    """

    def __init__(
        self,
        room: Room,
        reserved: Mapping[str, frozenset[str]],
        ends: dict[str, End],
        quotas: Quotas,
        now: float,
        policy: Policy,
        *,
        problem: bool,
        lent: LentPool | None = None,
    ) -> None:
        self.room = room
        self.head: QueuedJob | None = None
        self.slot: BackfillSlot | None = None
        self.held: frozenset[str] = frozenset()
        self.quotas = quotas
        self._reserved = reserved
        self.ends = ends
        self.now = now
        self._policy = policy
        self._problem = problem
        self.lent = lent
        self.shapes: dict[str, Shape] = {}  # by job
        self._possible: dict[Shape, bool] = {}
        self._full: dict[Shape, WaitCode] = {}  # shapes that no longer fit anywhere: skipped at once

    def serve(self, job: QueuedJob) -> tuple[Share, ...] | WaitCode:
        """The devices of a job that starts now, or the reason why it waits."""
        shape = self.shapes[job.id] = shape_of(job)
        if code := self._barred(job, shape):
            return code
        code = self._full.get(shape)
        shares = None if code else place(self.room, job, self.held)
        if shares is None and self._ends_before_head(job):
            shares = place(self.room, job)
        if shares is None:
            return code or self._postpone(job, shape)
        self.room.take(job, shares)
        self.quotas.add(job, len(shares))
        self.ends[job.id] = end_of(job, self.now, self._policy)
        self._full.clear()  # the reason may change from HELD to DEVICES
        return shares

    def _barred(self, job: QueuedJob, shape: Shape) -> WaitCode | None:
        """Reasons that more free devices would not change."""
        if self._problem:
            return WaitCode.POOL
        if not self.room.devices and self.lent is None:
            return WaitCode.NO_DEVICES
        if shape not in self._possible:
            self._possible[shape] = self._ever_fits(job) or self.may_be_lent(job)
        if not self._possible[shape]:
            return WaitCode.IMPOSSIBLE
        if job.waits_for:
            return WaitCode.DEPENDS
        if job.not_before is not None and job.not_before > self.now:
            return WaitCode.NOT_BEFORE
        if job.checking_out is not None:
            return WaitCode.CODE
        if job.preparing is not None:
            return WaitCode.ENVIRONMENT
        if job.fetching is not None:
            return WaitCode.DATA
        if job.planning:
            return WaitCode.PLAN
        return self.quotas.barrier(job)

    def _ever_fits(self, job: QueuedJob) -> bool:
        if job.memory_bytes is None and job.constraints is ANYWHERE and job.gpus <= self.room.largest_node:
            return True
        if job.constraints.for_packages:
            job = replace(job, constraints=once_furnished(job.constraints))
        if self.room.most_possible_bytes(job.gpus, job.constraints) >= (job.memory_bytes or 0):
            return True
        if self._policy.by_remaining and self.room.span(job):
            return True
        spans = self._policy.by_remaining and self._policy.span_nodes
        return spans and self.room.whole_nodes_for(job.gpus, job.constraints)

    def may_be_lent(self, job: Job) -> bool:
        """Whether another allocation would have the devices for a job."""
        is_bound = job.constraints.only_nodes and not job.constraints.for_packages
        if self.lent is None or job.gpus > self.lent.devices or is_bound:
            return False
        # Until the first allocation came, nobody knows the memory of its devices.
        largest = max((device.total_bytes for device in self.room.devices), default=None)
        return largest is None or (job.memory_bytes or 0) <= largest

    def _ends_before_head(self, job: QueuedJob) -> bool:
        if self.slot is None or job.time_limit_s is None:
            return False
        end = limit_end(job, self.now)
        return end is not None and end <= self.slot.shadow

    def _out_of_reach(self, job: QueuedJob) -> WaitCode | None:
        """The reason why a job could not start even if no job of Berth ran."""
        whole, need = job.memory_bytes is None, job.memory_bytes or 0
        if self.room.most_capacity_bytes(job.gpus, job.constraints, whole=whole) >= need:
            return None
        if self.may_be_lent(job):
            return WaitCode.LENT
        if not job.constraints.booked_devices:
            return WaitCode.UNAVAILABLE
        later = self.room.most_capacity_bytes(job.gpus, at_another_time(job.constraints), whole=whole)
        return WaitCode.RESERVED if later >= need else WaitCode.UNAVAILABLE

    def _postpone(self, job: QueuedJob, shape: Shape) -> WaitCode:
        """Make the job the head if the queue has no head yet; every later job of its shape waits for the same reason."""
        whole, need = job.memory_bytes is None, job.memory_bytes or 0
        if (code := self._out_of_reach(job)) is not None:
            self._full[shape] = code
            return code
        short = WaitCode.DEVICES if whole else WaitCode.MEMORY
        if self.room.kept_apart(job):
            short = WaitCode.NEIGHBOURS
        if self.head is None:
            reserved = self._reserved.get(job.id, frozenset())
            self.slot = soonest(self.room, job, self.ends, self.now, reserved)
            if self.slot is not None:
                self.head, self.held = job, frozenset(self.slot.device_ids)
            return short
        free = self.room.most_free_bytes(job.gpus, job.constraints, whole=whole)
        self._full[shape] = short if free < need or short is WaitCode.NEIGHBOURS else WaitCode.HELD
        return self._full[shape]
