"""Pools whose devices another system lends, as the scheduler sees them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from orchestrator.models import Device, Lender, Pilot, PilotState
from orchestrator.scheduler import core


def lent_pools(lenders: Iterable[Lender], pilots: Sequence[Pilot]) -> tuple[core.LentPool, ...]:
    """What more may come to each pool, and what is known of it."""
    return tuple(
        core.LentPool(
            lender.pool_id,
            lender.devices,
            max(0.0, lender.longest_s - lender.leave_before_s),
            _facts(lender, [pilot for pilot in pilots if pilot.pool_id == lender.pool_id]),
        )
        for lender in lenders
    )


def _facts(lender: Lender, pilots: Sequence[Pilot]) -> dict[str, int | float | str | None]:
    waiting = [pilot for pilot in pilots if pilot.state in {PilotState.REQUESTED, PilotState.WAITING}]
    facts: dict[str, int | float | str | None] = {
        "system": lender.get_system_display(),
        "waiting": len(waiting),
    }
    if lender.problem:
        return {**facts, "problem": lender.problem}
    if waiting:
        starts = [pilot.expected_at.timestamp() for pilot in waiting if pilot.expected_at is not None]
        reason = next((pilot.reason for pilot in waiting if pilot.reason), "")
        return {**facts, "reason": reason, "expected_s": min(starts, default=None)}
    if len(pilots) >= lender.most_pilots:
        return {**facts, "most": lender.most_pilots}
    return facts


def ends_of_pilots(
    pilots: Iterable[Pilot], lenders: Mapping[str, Lender], devices: Iterable[Device]
) -> tuple[core.Booking, ...]:
    """The end of each allocation, as a booking of its devices for nobody; one that is given back has ended for jobs."""
    by_node: dict[str, list[str]] = defaultdict(list)
    for device in devices:
        by_node[device.node].append(device.pk)
    return tuple(
        core.Booking(
            id=f"pilot {pilot.pk}",
            name=f"the end of {pilot.name}",
            pool=pilot.pool_id,
            start=_leaves_at(pilot, pilot.until, lenders.get(pilot.pool_id)).timestamp(),
            until=pilot.until.timestamp(),
            device_ids=tuple(sorted(by_node[pilot.name])),
            ends_there=True,
        )
        for pilot in pilots
        if pilot.state == PilotState.HELD and pilot.until is not None and by_node[pilot.name]
    )


def _leaves_at(pilot: Pilot, until: datetime, lender: Lender | None) -> datetime:
    if pilot.given_back_at is not None:
        return min(pilot.given_back_at, until)
    return until - timedelta(seconds=lender.leave_before_s if lender else 0)
