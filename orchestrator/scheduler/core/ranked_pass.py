"""One pass over a pool whose jobs may be stopped for one another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from orchestrator.scheduler.core.board import Board, Spot
from orchestrator.scheduler.core.choosing import choose
from orchestrator.scheduler.core.estimate import End, end_of
from orchestrator.scheduler.core.fragmentation import Ask
from orchestrator.scheduler.core.order import heed_wishes
from orchestrator.scheduler.core.pool_pass import PoolPass, Shape, shape_of
from orchestrator.scheduler.core.quota import Quotas
from orchestrator.scheduler.core.ranking import TRIAL, Ranking, Standing, restart_cost_s, trial_s
from orchestrator.scheduler.core.reservation import soonest
from orchestrator.scheduler.core.room import Room
from orchestrator.scheduler.core.types import Policy, QueuedJob, RunningJob, Share, WaitCode

_CHOSEN_COST = 1e9  # rather stop ten jobs that should not run than move one that should


@dataclass(slots=True)
class Plan:
    """What a pass decided for its pool."""

    order: list[QueuedJob] = field(default_factory=list)  # as they are served
    starts: dict[str, tuple[Share, ...]] = field(default_factory=dict)
    codes: dict[str, WaitCode] = field(default_factory=dict)
    victims: dict[str, str] = field(default_factory=dict)  # running job: for whom it stops
    reserved: dict[str, tuple[str, ...]] = field(default_factory=dict)  # while victims leave
    standings: dict[str, Standing] = field(default_factory=dict)
    ranked: list[Standing] = field(default_factory=list)  # who competes, queued and running, best first


class RankedPass(PoolPass):
    """Chooses who should run, then finds places, stopping others only where the place then exists."""

    def __init__(
        self,
        room: Room,
        kept: Mapping[str, frozenset[str]],
        ends: dict[str, End],
        quotas: Quotas,
        now: float,
        policy: Policy,
        *,
        problem: bool,
        ranking: Ranking,
        running: Sequence[RunningJob],
        mix: Sequence[Ask] = (),
    ) -> None:
        super().__init__(room, kept, ends, quotas, now, policy, problem=problem)
        self.ranking = ranking
        self.running = {job.id: job for job in running}
        self._board = Board(room, running, mix)
        self._plan = Plan()
        self.begun: list[QueuedJob] = []  # that start now
        self._chosen: set[str] = set()
        self._leaving: set[str] = set()  # devices that are free only in the plan
        self.units = self._board.units()
        self._displaced = False  # somebody who should run was moved, and needs another place

    def plan(self, queued: Sequence[QueuedJob]) -> Plan:
        standings = self._plan.standings
        everyone = (*queued, *self.running.values())
        rank = self.ranking.of
        for job in everyone:
            standings[job.id] = rank(job)
        heed_wishes(everyone, standings)
        self._plan.order = sorted(queued, key=lambda job: standings[job.id])
        able = self._able(self._plan.order)
        if not able:
            return self._plan
        if self._kept:
            able = [job for job in able if job.id not in self._kept or not self._honoured(job)]
        units = self.units - sum(standings[id_].units for id_ in self._plan.reserved)
        units -= sum(standings[id_].units for id_ in self._plan.starts)
        self._choose(able, units)
        head = self._held_up(able, units)
        self._serve([job for job in able if job.id in self._chosen or job is head])
        self._fill([job for job in able if job.id not in self._chosen and job is not head])
        return self._plan

    def _able(self, jobs: Sequence[QueuedJob]) -> list[QueuedJob]:
        """Those that nothing bars but a lack of devices."""
        able = []
        shapes, fits, limited = self.shapes, self._possible, self.quotas.limited
        for job in jobs:
            shape = shapes[job.id] = shape_of(job)
            free = not job.waits_for and job.not_before is None and job.array_at_most is None
            plain = free and not limited and fits.get(shape)  # as most of a long queue are
            code = None if plain else self._barred(job, shape)
            if code is None:
                able.append(job)
            else:
                self._plan.codes[job.id] = code
        return able

    def _honoured(self, job: QueuedJob) -> bool:
        """Whether devices that were cleared, or are being cleared, for this job are still its own."""
        kept = self._kept.get(job.id)
        if not kept or len(kept) != job.gpus or not self._cleared_for(job, kept):
            return False
        spot = Spot(tuple(sorted(kept)))
        self._board.take(job.id, [(id_, job.memory_bytes) for id_ in spot.device_ids])
        if self._all_free(job, spot):
            self._begin(job, spot)
        else:
            self._keep(job, spot)
        return True

    def _cleared_for(self, job: QueuedJob, kept: frozenset[str]) -> bool:
        for id_ in kept:
            site = self._board.sites.get(id_)
            if site is None or id_ in job.constraints.booked_devices or not site.could_fit(job.memory_bytes):
                return False
            staying = [claim for tenant, claim in site.tenants.items() if not self._stops(tenant)]
            if job.memory_bytes is None or None in staying:
                if staying:
                    return False
            elif sum(claim or 0 for claim in staying) + job.memory_bytes > site.share_bytes:
                return False
        return self.quotas.barrier(job) is None

    def _stops(self, tenant: str) -> bool:
        job = self.running.get(tenant)
        return job is not None and job.stopping

    def _all_free(self, job: QueuedJob, spot: Spot) -> bool:
        """In the real room, that is, not only in the plan."""
        need, whole = job.memory_bytes or 0, job.memory_bytes is None
        return all(
            self.room.free_bytes(self._board.sites[id_].device, whole=whole) >= need
            for id_ in spot.device_ids
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
        """The first that is left out only because some who run may not be stopped.

        Who comes after it must not take one device after the other that it waits for.
        """
        lowest = min((job.priority for job in able[-1:]), default=0)  # they come by their bands
        if not any(_stays(one, lowest) for one in self.running.values()):
            return None
        stay: dict[int, float] = {}  # units that cannot be cleared, by the priority of who wants them
        for job in able:
            if job.id in self._chosen:
                continue
            if job.priority not in stay:
                found = [one.id for one in self.running.values() if _stays(one, job.priority)]
                stay[job.priority] = sum(self._plan.standings[id_].units for id_ in found)
            taken = stay[job.priority]
            if taken and self._plan.standings[job.id].units > units - taken:
                return job
        return None

    def _serve(self, jobs: Sequence[QueuedJob]) -> None:
        """Place the jobs that should run; the first that cannot be placed is held a slot."""
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
        # What is kept for the head is not cleared for another.
        return self._board.cleared_spot(job, parts, lambda tenant: self._price(tenant, wanting), self.held)

    def _price(self, tenant: str, wanting: Standing) -> float | None:
        """What stopping a tenant for a job of this rank costs, in GPU-seconds; None: it must stay."""
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
        if (
            same_band and wanting.phase != TRIAL and 1 < standing.worth * cost_s < inf
        ):  # it would end before it is back
            return None
        return cost_s * standing.units + (_CHOSEN_COST if chosen else 0.0)

    def _ran_enough(self, job: RunningJob, wanting: Standing) -> bool:
        """A resumed job keeps its devices for its quantum, except from a higher band or a trial."""
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
        self._board.take(job.id, [(id_, job.memory_bytes) for id_ in spot.device_ids])
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
        """Give what is left over to the next in line, without stopping anyone."""
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
            # What is free is left to those who were moved.
            spot = None if self._displaced else self._board.free_spot(job, parts, closed)
            if spot is not None and self._all_free(job, spot):
                self._settle(job, spot)
                continue
            codes[job.id] = failed[shape] = self._shortage(job)

    def _may_use_held(self, job: QueuedJob) -> bool:
        """On the devices kept for the head: who is gone before it starts, or can be stopped for it."""
        if self.slot is None or self._ends_before_head(job):
            return True
        return job.preemptible and self._policy.quantum_restarts == 0

    def _postpone_ranked(self, job: QueuedJob, shape: Shape) -> None:
        self._plan.codes[job.id] = self._shortage(job)
        if (
            self.head is None
            and self._some_stay(job)
            and self._plan.codes[job.id] not in {WaitCode.UNAVAILABLE, WaitCode.RESERVED}
        ):
            self.ends.update((one.id, end_of(one, self.now, self._policy)) for one in self.running.values())
            kept = self._kept.get(job.id, frozenset())
            self.slot = soonest(self.room, job, self.ends, self.now, kept)
            if self.slot is not None:
                self.head, self.held = job, frozenset(self.slot.device_ids)

    def _some_stay(self, job: QueuedJob) -> bool:
        """Whether stopping others cannot serve it: they may not be stopped, or not yet."""
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
        if (
            self.room.most_free_bytes(job.gpus, job.constraints, whole=whole) >= need
            and self.head is not None
        ):
            return WaitCode.HELD
        return WaitCode.DEVICES if whole else WaitCode.MEMORY

    def _spans(self, job: QueuedJob) -> bool:
        return len(self._board.parts(job, span=self._policy.span_nodes)) > 1

    def leaving_for(self, job_id: str) -> tuple[RunningJob, ...]:
        """Who has to leave the devices that are kept for a job."""
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
