"""One pass over a pool whose jobs may be stopped for one another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from orchestrator.scheduler.core.backfill import soonest
from orchestrator.scheduler.core.board import Board, Spot
from orchestrator.scheduler.core.decisions import WaitCode
from orchestrator.scheduler.core.ends import End, end_of
from orchestrator.scheduler.core.fragmentation import Ask
from orchestrator.scheduler.core.order import apply_owner_order
from orchestrator.scheduler.core.pool_pass import PoolPass, Shape, shape_of
from orchestrator.scheduler.core.quota import Quotas
from orchestrator.scheduler.core.ranking import TRIAL, Ranking, Standing, choose, restart_cost_s, trial_s
from orchestrator.scheduler.core.room import Room
from orchestrator.scheduler.core.types import (
    LentPool,
    Policy,
    QueuedJob,
    RunningJob,
    Share,
)

_CHOSEN_COST = 1e9  # stopping ten jobs that should not run is better than moving one that should


@dataclass(slots=True)
class PoolDecisions:
    """What a pass decided for its pool."""

    order: list[QueuedJob] = field(default_factory=list)  # in the order of serving
    starts: dict[str, tuple[Share, ...]] = field(default_factory=dict)
    codes: dict[str, WaitCode] = field(default_factory=dict)
    victims: dict[str, str] = field(default_factory=dict)  # by running job, the job that it stops for
    giving_back: set[str] = field(default_factory=set)  # victims that hold memory beyond their claims
    reserved: dict[str, tuple[str, ...]] = field(default_factory=dict)  # while victims leave
    standings: dict[str, Standing] = field(default_factory=dict)
    ranked: list[Standing] = field(default_factory=list)  # the competing jobs, queued and running, best first


class RankedPass(PoolPass):
    """Chooses the jobs that should run, then places them; a job is stopped only if the place then exists."""

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
        ranking: Ranking,
        running: Sequence[RunningJob],
        mix: Sequence[Ask] = (),
    ) -> None:
        super().__init__(room, reserved, ends, quotas, now, policy, problem=problem, lent=lent)
        self.ranking = ranking
        self.running = {job.id: job for job in running}
        self._board = Board(room, running, mix)
        self._plan = PoolDecisions()
        self.begun: list[QueuedJob] = []  # the jobs that start now
        self._chosen: set[str] = set()
        self._leaving: set[str] = set()  # devices that are free only in the plan
        self.units = self._board.units()
        self._displaced = False  # a job that should run was moved and needs another place

    def plan(self, queued: Sequence[QueuedJob]) -> PoolDecisions:
        standings = self._plan.standings
        everyone = (*queued, *self.running.values())
        rank = self.ranking.of
        for job in everyone:
            standings[job.id] = rank(job)
        apply_owner_order(everyone, standings)
        self._plan.order = sorted(queued, key=lambda job: standings[job.id])
        able = self._able(self._plan.order)
        if not able:
            return self._plan
        if self._reserved:
            able = [job for job in able if job.id not in self._reserved or not self._honoured(job)]
        units = self.units - sum(standings[id_].units for id_ in self._plan.reserved)
        units -= sum(standings[id_].units for id_ in self._plan.starts)
        self._choose(able, units)
        head = self._held_up(able, units)
        self._serve([job for job in able if job.id in self._chosen or job is head])
        self._fill([job for job in able if job.id not in self._chosen and job is not head])
        return self._plan

    def _able(self, jobs: Sequence[QueuedJob]) -> list[QueuedJob]:
        """The jobs that only a lack of devices keeps from starting."""
        able = []
        shapes, fits, limited = self.shapes, self._possible, self.quotas.limited
        for job in jobs:
            shape = shapes[job.id] = shape_of(job)
            free = not job.waits_for and job.not_before is None and job.array_at_most is None
            free = free and job.agent is None and job.has_all_it_needs
            plain = free and not limited and fits.get(shape)  # true for most of a long queue
            code = None if plain else self._barred(job, shape)
            if code is None:
                able.append(job)
            else:
                self._plan.codes[job.id] = code
        return able

    def _honoured(self, job: QueuedJob) -> bool:
        """Take the devices that were, or are being, cleared for this job if they are still its own."""
        reserved = self._reserved.get(job.id)
        if not reserved or len(reserved) != job.gpus or not self._cleared_for(job, reserved):
            return False
        spot = Spot(tuple(sorted(reserved)))
        self._board.take(job, spot.device_ids)
        if self._all_free(job, spot):
            self._begin(job, spot)
        else:
            self._keep(job, spot)
        return True

    def _cleared_for(self, job: QueuedJob, reserved: frozenset[str]) -> bool:
        for id_ in reserved:
            site = self._board.sites.get(id_)
            if site is None or id_ in job.constraints.booked_devices or not site.could_fit(job.memory_bytes):
                return False
            staying = {tenant: claim for tenant, claim in site.tenants.items() if not self._stops(tenant)}
            if job.memory_bytes is None or None in staying.values():
                if staying:
                    return False
            elif sum(claim or 0 for claim in staying.values()) + job.memory_bytes > site.share_bytes:
                return False
            if self._board.crowds(site, job, staying):
                return False
        return self.quotas.barrier(job) is None

    def _stops(self, tenant: str) -> bool:
        job = self.running.get(tenant)
        return job is not None and job.stopping

    def _all_free(self, job: QueuedJob, spot: Spot) -> bool:
        """Whether the devices are free in the real room, not only in the plan."""
        need, whole = job.memory_bytes or 0, job.memory_bytes is None
        return all(
            self.room.free_bytes(device, whole=whole) >= need and not self.room.crowded(device, job)
            for device in (self._board.sites[id_].device for id_ in spot.device_ids)
        )

    def _choose(self, able: Sequence[QueuedJob], units: float) -> None:
        standings = self._plan.standings
        competing = [standings[job.id] for job in able]
        competing += [standings[job.id] for job in self.running.values() if not job.stopping]
        competing.sort()
        self._plan.ranked = competing
        sizes = {self.ranking.units(gpus, memory_bytes) for gpus, memory_bytes, _ in self._possible}
        sizes.update(standings[id_].units for id_ in self.running)
        self._chosen = choose(competing, units, self._policy.swaps, sizes)

    def _held_up(self, able: Sequence[QueuedJob], units: float) -> QueuedJob | None:
        """The first job left out only because some running jobs may not be stopped.

        Later jobs must not take the devices it waits for, one after the other.
        """
        lowest = min((job.priority for job in able[-1:]), default=0)  # jobs are sorted by band
        if not any(_stays(one, lowest) for one in self.running.values()):
            return None
        stay: dict[
            int, float
        ] = {}  # units that cannot be cleared, by the priority of the job that wants them
        for job in able:
            if job.id in self._chosen:
                continue
            if job.priority not in stay:
                staying = [one.id for one in self.running.values() if _stays(one, job.priority)]
                stay[job.priority] = sum(self._plan.standings[id_].units for id_ in staying)
            taken = stay[job.priority]
            if taken and self._plan.standings[job.id].units > units - taken:
                return job
        return None

    def _serve(self, jobs: Sequence[QueuedJob]) -> None:
        """Place the jobs that should run; the first that cannot be placed gets a reserved slot."""
        failed: set[Shape] = set()
        for job in jobs:
            shape = self.shapes[job.id]
            if (barrier := self.quotas.barrier(job)) is not None:
                self._plan.codes[job.id] = barrier
                continue
            spot = None if shape in failed or job.id not in self._chosen else self._find(job)
            if spot is None:
                failed.add(shape)
                self._postpone_ranked(job, shape)
                continue
            self._settle(job, spot)

    def _find(self, job: QueuedJob) -> Spot | None:
        parts = self._board.parts(job, span=self._policy.span_nodes)
        closed = frozenset() if self._may_use_held(job) else self.held
        spot = self._board.free_spot(job, parts, closed)
        if spot is not None or not self.running:
            return spot
        wanting = self._plan.standings[job.id]
        # Devices reserved for the head are not cleared for another job.
        return self._board.cleared_spot(job, parts, lambda tenant: self._price(tenant, wanting), self.held)

    def _price(self, tenant: str, wanting: Standing) -> float | None:
        """The cost in GPU-seconds of stopping a tenant for a job of this rank; None: it must stay."""
        job = self.running.get(tenant)
        if job is None or job.stopping or not job.preemptible:
            return None
        standing = self._plan.standings[tenant]
        chosen = tenant in self._chosen
        if (
            (chosen and standing <= wanting)
            or standing.band < wanting.band
            or not self._ran_enough(job, wanting)
        ):
            return None
        cost_s = restart_cost_s(job, self._policy) + (job.checkpoint_age_s or 0.0)
        same_band = standing.band == wanting.band
        # It would end sooner than it could be stopped and resumed.
        if same_band and wanting.phase != TRIAL and 1 < standing.worth * cost_s < inf:
            return None
        return cost_s * standing.units + (_CHOSEN_COST if chosen else 0.0)

    def _ran_enough(self, job: RunningJob, wanting: Standing) -> bool:
        """Whether a resumed job has had its quantum; jobs of a higher band and trials need not wait for that."""
        if (
            -job.priority > wanting.band
            or wanting.phase == TRIAL
            or job.ran_s < trial_s(job, self._policy) * 2
        ):
            return True
        return self.now - job.started >= self._policy.quantum_restarts * restart_cost_s(job, self._policy)

    def _settle(self, job: QueuedJob, spot: Spot) -> None:
        for victim in spot.victims:
            self._plan.victims[victim] = job.id
            self._displaced = self._displaced or victim in self._chosen
            self._leaving.update(share.device_id for share in self.running[victim].shares)
            self._board.give(victim)
        self._plan.giving_back |= spot.giving_back
        self._board.take(job, spot.device_ids)
        if self._all_free(job, spot):
            self._begin(job, spot)
        else:
            self._keep(job, spot)

    def _begin(self, job: QueuedJob, spot: Spot) -> None:
        shares = tuple(Share(id_, job.memory_bytes) for id_ in spot.device_ids)
        self._plan.starts[job.id] = shares
        self.begun.append(job)
        self.room.take(job, shares)
        self.quotas.add(job, len(shares))
        self.ends[job.id] = end_of(job, self.now, self._policy)

    def _keep(self, job: QueuedJob, spot: Spot) -> None:
        self._plan.reserved[job.id] = spot.device_ids
        self._plan.codes[job.id] = WaitCode.DEVICES if job.memory_bytes is None else WaitCode.MEMORY
        self.quotas.add(job, len(spot.device_ids))

    def _fill(self, jobs: Sequence[QueuedJob]) -> None:
        """Give the remaining devices to the next jobs in line without stopping any."""
        failed: dict[Shape, WaitCode] = {}
        codes = self._plan.codes
        closed_to_all = frozenset(self._leaving)
        for job in jobs:
            shape = self.shapes[job.id]
            code = failed.get(shape)
            if code is not None and (code is not WaitCode.HELD or not self._may_use_held(job)):
                codes[job.id] = code
                continue
            if (barrier := self.quotas.barrier(job)) is not None:
                codes[job.id] = barrier
                continue
            closed = closed_to_all if self._may_use_held(job) else closed_to_all | self.held
            parts = self._board.parts(job, span=self._policy.span_nodes)
            # Free devices are left to the jobs that were moved.
            spot = None if self._displaced else self._board.free_spot(job, parts, closed)
            if spot is not None and self._all_free(job, spot):
                self._settle(job, spot)
                continue
            codes[job.id] = failed[shape] = self._shortage(job)

    def _may_use_held(self, job: QueuedJob) -> bool:
        """Whether a job may use the head's reserved devices: it leaves before the head starts, or can be stopped."""
        if self.slot is None or self._ends_before_head(job):
            return True
        return job.preemptible and self._policy.quantum_restarts == 0

    def _postpone_ranked(self, job: QueuedJob, shape: Shape) -> None:
        self._plan.codes[job.id] = self._shortage(job)
        if (
            self.head is None
            and self._some_stay(job)
            and self._plan.codes[job.id] not in {WaitCode.UNAVAILABLE, WaitCode.RESERVED, WaitCode.LENT}
        ):
            self.ends.update((one.id, end_of(one, self.now, self._policy)) for one in self.running.values())
            reserved = self._reserved.get(job.id, frozenset())
            self.slot = soonest(self.room, job, self.ends, self.now, reserved)
            if self.slot is not None:
                self.head, self.held = job, frozenset(self.slot.device_ids)

    def _some_stay(self, job: QueuedJob) -> bool:
        """Whether stopping others cannot serve the job, because they may not be stopped or not yet."""
        if self._policy.quantum_restarts > 0 or not job.preemptible:
            return True
        everyone = (*self.running.values(), *self._plan.order)
        return any(not one.preemptible or one.priority > job.priority for one in everyone)

    def _shortage(self, job: QueuedJob) -> WaitCode:
        whole, need = job.memory_bytes is None, job.memory_bytes or 0
        if self._spans(job):
            return WaitCode.DEVICES
        if (code := self._out_of_reach(job)) is not None:
            return code
        if self.room.kept_apart(job):
            return WaitCode.NEIGHBOURS
        if (
            self.room.most_free_bytes(job.gpus, job.constraints, whole=whole) >= need
            and self.head is not None
        ):
            return WaitCode.HELD
        return WaitCode.DEVICES if whole else WaitCode.MEMORY

    def _spans(self, job: QueuedJob) -> bool:
        return len(self._board.parts(job, span=self._policy.span_nodes)) > 1

    def leaving_for(self, job_id: str) -> tuple[RunningJob, ...]:
        """The jobs that must leave the devices reserved for a job."""
        ids = set(self._plan.reserved.get(job_id, ()))
        return tuple(
            job
            for job in self.running.values()
            if (job.stopping or job.id in self._plan.victims)
            and any(share.device_id in ids for share in job.shares)
        )


def _stays(running: RunningJob, priority: int) -> bool:
    """Whether a running job may not be stopped for one that waits with this priority, whatever their ranks."""
    return not running.stopping and (not running.preemptible or running.priority > priority)
