"""What a pool's pilots are, asked of the system, and what is to be done about them."""

import logging
import re
import secrets
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import transaction

from orchestrator.facts.events import HealthFact
from orchestrator.facts.record import fact
from orchestrator.jobs.launch.engines import order_of
from orchestrator.lending.port import Grant, GrantState, LendingEngine, PilotRequest, Refused
from orchestrator.lending.wanting import Limits, PilotFacts, decide
from orchestrator.live import wakeups
from orchestrator.models import Attempt, Device, Health, Job, Lease, Lender, Pilot, PilotState
from orchestrator.nodes.copies import Copy
from orchestrator.nodes.reports import read_reports
from orchestrator.supervisor.liveness import Liveness

logger = logging.getLogger(__name__)

# Codes of jobs that more devices would help.
HELPED_BY_DEVICES = frozenset({"lent", "devices", "memory", "neighbours", "held"})
MOST_JOBS = 1000  # that are looked at for the number of pilots
REFUSED_FOR_S = 60.0  # until a refused request is repeated
UNKNOWN_AFTER_S = 60.0  # a request that the system has not shown by then never arrived
JOINS_WITHIN_S = 300.0  # from the allocation's start, until its server is given up


class PoolLending:
    """One turn of a pool's lender: look, settle, decide, act."""

    def __init__(self, lender: Lender, engine: LendingEngine, head: str, token: str, now: datetime) -> None:
        self._lender = lender
        self._engine = engine
        self._head = head
        self._token = token
        self._now = now

    def turn(self) -> None:
        """Bring the rows up to date, then ask for pilots or give some back.

        Raises:
            NoAnswer: the system does not answer; nothing was changed.
        """
        pilots = list(self._lender.pool.pilots.open())
        grants = self._engine.grants([pilot.tag for pilot in pilots])
        for pilot in pilots:
            self._note(pilot, grants.get(pilot.tag))
        pilots = [pilot for pilot in pilots if pilot.state != PilotState.ENDED]
        lender = self._lender
        limits = Limits(lender.devices, lender.most_pilots, lender.idle_s)
        decision = decide(limits, self._waiting(), self._facts(pilots))
        if not lender.most_pilots:
            self._give_all_back(pilots)
        for pilot in pilots:
            if pilot.pk in decision.release:
                self._give_back(pilot, "Nothing needs it.")
        if decision.request and not self._was_refused():
            self._request(decision.request)

    # Looking

    def _note(self, pilot: Pilot, grant: Grant | None) -> None:
        before = (pilot.state, pilot.reason, pilot.expected_at, pilot.until, pilot.grant, pilot.where)
        if grant is None:
            self._note_absence(pilot)
        elif grant.state is GrantState.WAITING:
            pilot.state, pilot.grant, pilot.reason = PilotState.WAITING, grant.id, grant.reason[:300]
            pilot.expected_at = _minute(grant.expected_at)
        elif grant.state is GrantState.HELD:
            self._note_held(pilot, grant)
        elif grant.is_proof or self._is_surely_over(pilot):
            pilot.grant = grant.id
            self._end(pilot, grant.reason)
        else:
            pilot.reason = f"{grant.reason}; what ran there may run until its time is over."[:300]
        if before != (pilot.state, pilot.reason, pilot.expected_at, pilot.until, pilot.grant, pilot.where):
            pilot.save()
            wakeups.schedule()
            wakeups.publish("devices")

    def _note_held(self, pilot: Pilot, grant: Grant) -> None:
        if pilot.state != PilotState.HELD:
            logger.info("%s has %s until %s.", pilot.name, grant.where, grant.until)
            pilot.state, pilot.reason, pilot.expected_at = PilotState.HELD, "", None
            pilot.held_at = _moment(grant.held_at) or self._now
        pilot.grant, pilot.where = grant.id, grant.where[:200]
        pilot.until = _moment(grant.until) or (pilot.held_at or self._now) + timedelta(
            seconds=pilot.longest_s
        )

    def _note_absence(self, pilot: Pilot) -> None:
        """A request that never arrived is over; what a system has forgotten may run on, if it has jobs."""
        if Attempt.objects.live().filter(node=pilot.name).exists():
            if pilot.state != PilotState.HELD:
                pilot.state, pilot.held_at = PilotState.HELD, self._now
                pilot.until = self._now + timedelta(seconds=pilot.longest_s)
            if not self._is_surely_over(pilot):
                return
        since = pilot.given_back_at or pilot.held_at or pilot.requested_at
        if (self._now - since).total_seconds() > UNKNOWN_AFTER_S:
            self._end(pilot, "The system does not know it.")

    def _is_surely_over(self, pilot: Pilot) -> bool:
        """Whether nothing of a pilot can run, whatever its system says.

        Its guard ends everything by its own clock, which started at most JOINS_WITHIN_S before the server joined.
        """
        if pilot.state != PilotState.HELD or pilot.held_at is None:
            return True
        return self._now > pilot.held_at + timedelta(seconds=pilot.longest_s + JOINS_WITHIN_S)

    def _end(self, pilot: Pilot, reason: str) -> None:
        """Note that nothing of an allocation runs any more; its jobs go on elsewhere from their checkpoints."""
        pilot.state, pilot.ended_at, pilot.reason = PilotState.ENDED, self._now, reason[:300]
        forget(pilot)
        logger.info("%s has ended: %s", pilot.name, reason)

    # Deciding

    def _waiting(self) -> list[int]:
        """The devices of each waiting job that a pilot may have, in the order of waiting."""
        rows = Job.objects.queued().filter(pool=self._lender.pool, wait_code__in=HELPED_BY_DEVICES)
        jobs = rows.order_by("-priority", "submitted_at").values_list("gpus", "wait_facts")[:MOST_JOBS]
        return [gpus for gpus, facts in jobs if "needs_s" not in facts]

    def _facts(self, pilots: Sequence[Pilot]) -> list[PilotFacts]:
        names = [pilot.name for pilot in pilots]
        rows = list(Device.objects.filter(node__in=names))
        usable = Counter(row.node for row in rows if row.usable)
        held = Counter(
            Lease.objects.active().filter(device__node__in=names).values_list("device__node", flat=True)
        )
        # A server has joined once its devices are in the table, a moment after it answers.
        joined = {report.name for report in read_reports(settings.HOME.nodes)}
        joined &= {row.node for row in rows if row.health != Health.MISSING}
        return [
            self._fact(pilot, pilot.name in joined, usable[pilot.name], held[pilot.name]) for pilot in pilots
        ]

    def _fact(self, pilot: Pilot, has_joined: bool, usable: int, held: int) -> PilotFacts:
        joined = pilot.state == PilotState.HELD and has_joined
        if joined and (held or pilot.used_at is None):
            pilot.used_at = self._now
            Pilot.objects.filter(pk=pilot.pk).update(used_at=self._now)
        used_at = pilot.used_at or self._now
        return PilotFacts(
            id=pilot.pk,
            joined=joined,
            used=held,
            free=max(0, usable - held),
            idle_for_s=(self._now - used_at).total_seconds(),
            leaving=pilot.given_back_at is not None or self._is_near_its_end(pilot),
        )

    def _is_near_its_end(self, pilot: Pilot) -> bool:
        margin = timedelta(seconds=self._lender.leave_before_s)
        return pilot.until is not None and self._now >= pilot.until - margin

    def _was_refused(self) -> bool:
        at = self._lender.problem_at
        return at is not None and (self._now - at).total_seconds() < REFUSED_FOR_S

    # Acting

    def give_back_spent(self) -> None:
        """Give back pilots that can do no more: near their end without a job, or without a server for too long."""
        pilots = list(self._lender.pool.pilots.filter(state=PilotState.HELD))
        for pilot, facts in zip(pilots, self._facts(pilots), strict=True):
            if pilot.given_back_at is not None:
                if pilot.given_back_at < self._now and not facts.used:
                    self._engine.release(pilot.grant)
                continue
            late_s = (self._now - (pilot.held_at or self._now)).total_seconds()
            if facts.leaving and not facts.used:
                self._give_back(pilot, "Its time is nearly over.")
            elif not facts.joined and late_s > JOINS_WITHIN_S:
                self._give_back(pilot, f"No server joined from it within {JOINS_WITHIN_S:.0f} s.")

    def _give_all_back(self, pilots: Sequence[Pilot]) -> None:
        """Withdraw every request and give back what no job holds; the lender is to lend no more."""
        for pilot, facts in zip(pilots, self._facts(pilots), strict=True):
            if not facts.used and pilot.given_back_at is None:
                self._give_back(pilot, "The pool is to have none.")

    def _give_back(self, pilot: Pilot, why: str) -> None:
        """Close a pilot to jobs; it goes back one turn later, if no job has started on it in between."""
        if not pilot.grant:
            return  # the next turn knows its number
        if pilot.state != PilotState.HELD:
            self._engine.release(pilot.grant)
        if pilot.given_back_at is None:
            pilot.given_back_at = self._now
            Pilot.objects.filter(pk=pilot.pk).update(given_back_at=self._now)
            wakeups.schedule()
            logger.info("%s is given back: %s", pilot.name, why)

    def _request(self, count: int) -> None:
        for _ in range(count):
            pilot = self._new_pilot()
            if pilot is None:
                return
            try:
                pilot.grant = self._engine.request(self._wish(pilot))
            except Refused as error:
                pilot.delete()
                self._tell(str(error))
                return
            pilot.state, pilot.reason = PilotState.WAITING, ""
            pilot.save()
            self._tell("")
            logger.info("%s is asked for: %s", pilot.name, pilot.grant)

    def _wish(self, pilot: Pilot) -> PilotRequest:
        lender = self._lender
        return PilotRequest(
            tag=pilot.tag,
            name=pilot.name,
            head=self._head,
            token=self._token,
            devices="nvml" if lender.gpus else f"cpu:{lender.cpus}",
            gpus=lender.gpus,
            cpus=lender.cpus,
            longest_s=lender.longest_s,
        )

    def _new_pilot(self) -> Pilot | None:
        """A row before the request, so that one whose answer is lost is found again; None if no name is free."""
        stem = re.sub(r"[^a-z0-9]+", "-", self._lender.pool_id.lower()).strip("-")[:40]
        with transaction.atomic():
            taken = set(Pilot.objects.open().values_list("name", flat=True))
            # A name comes again only once no job of its last allocation is open.
            taken |= set(Attempt.objects.live().values_list("node", flat=True))
            names = (f"{stem}-{self._lender.system}-{number}" for number in range(1, 2 * len(taken) + 2))
            name = next((one for one in names if one not in taken), None)
            if name is None:
                return None
            return Pilot.objects.create(
                name=name,
                tag=f"berth-{secrets.token_hex(8)}",
                pool=self._lender.pool,
                system=self._lender.system,
                devices=self._lender.devices,
                longest_s=self._lender.longest_s,
                requested_at=self._now,
            )

    def _tell(self, problem: str) -> None:
        """Keep the last refusal with the pool, where waiting jobs and pages find it."""
        lender = self._lender
        if problem or lender.problem:
            if problem != lender.problem:
                logger.warning("Pool %s: %s", lender.pool_id, problem or "the system lends again.")
            lender.problem, lender.problem_at = problem[:500], self._now if problem else None
            Lender.objects.filter(pk=lender.pk).update(problem=lender.problem, problem_at=lender.problem_at)
            wakeups.schedule()


def forget(pilot: Pilot) -> None:
    """Declare what ran on an ended allocation lost, and take its server and devices off the list."""
    declare_lost([pilot.name])
    # Now, not when the agent looks next: no job is to be placed there in between.
    Device.objects.filter(node=pilot.name).update(
        health=Health.MISSING,
        health_why=fact(HealthFact.ALLOCATION_ENDED, system=pilot.get_system_display()).as_json(),
    )
    (settings.HOME.nodes / f"{pilot.name}.json").unlink(missing_ok=True)


def declare_lost(names: Collection[str]) -> None:
    """Note that attempts on these servers run no more; repeated until the agent has seen it, as a note goes stale."""
    for attempt in Attempt.objects.live().filter(node__in=names):
        order = order_of(attempt)
        folder = settings.HOME.job(order.job).attempt(order.attempt)
        if folder.root.is_dir():
            Copy(folder, order.nonce).note(Liveness.LOST)


def _moment(at_s: float | None) -> datetime | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)


def _minute(at_s: float | None) -> datetime | None:
    """An estimate in whole minutes, so that not every look changes it."""
    return None if at_s is None else datetime.fromtimestamp(at_s // 60 * 60, UTC)
