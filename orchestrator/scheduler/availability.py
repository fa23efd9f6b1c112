"""Whether a device is free for somebody, and if not why: one answer for tiles, lists, REST and the command line."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

from berth import words
from orchestrator.live.readings import NowReadings
from orchestrator.models import Device, Health, Lease, PoolRight, Role
from orchestrator.people import rights
from orchestrator.people.rights import Someone
from orchestrator.scheduler.passes.keeps import Keep, read_keeps

FOREIGN_SHOWN_BYTES = 64 * words.MIB  # a display server is not news


class Availability(StrEnum):
    FREE = "free"  # a job of this person could start on it now
    KEPT = "kept"  # nobody holds it, but it is for somebody else
    CLOSED = "closed"  # nobody holds it, and its pool takes no jobs of this person
    HELD = "held"  # by jobs of Berth
    FOREIGN = "foreign"  # by processes that are not Berth's
    OUT = "out"  # drained, disabled or broken
    UNREAD = "unread"  # nobody knows who uses it; nothing starts there


@dataclass(frozen=True, slots=True)
class Standing:
    """What one person is told about one device."""

    state: Availability
    sentence: str
    keep: Keep | None = None  # where it is kept

    @property
    def is_free(self) -> bool:
        return self.state == Availability.FREE


class Reader:
    """Somebody who looks at devices: what is kept, and which pools take their jobs."""

    def __init__(self, user: Someone, now: datetime) -> None:
        self._user = user
        self._id = user.pk
        self._name = user.get_username()
        self._now = now
        self._keeps: Mapping[str, list[Keep]] = read_keeps(now)

    def standing(self, device: Device, *, held: bool, entry: Mapping[str, Any] | None) -> Standing:
        """
        Args:
            device: with its pool.
            held: a job of Berth is on it.
            entry: of the newest readings; None where there is none.
        """
        if device.health != Health.OK:
            return Standing(Availability.OUT, device.health_reason or device.health)
        if held:
            return Standing(Availability.HELD, "Held by a job.")
        if not device.usable:
            return Standing(Availability.OUT, "Takes no new jobs.")
        if device.kind == "gpu" and (entry is None or "used_bytes" not in entry):
            return Standing(Availability.UNREAD, "Not read now; nothing starts on it.")
        if entry is not None and entry.get("foreign_bytes", 0) > FOREIGN_SHOWN_BYTES:
            return Standing(Availability.FOREIGN, "Used by processes that are not Berth's.")
        return self._unheld(device)

    def _unheld(self, device: Device) -> Standing:
        keep = next((each for each in self._keeps.get(device.pk, ()) if each.binds(self._name)), None)
        if keep is not None:
            return Standing(Availability.KEPT, keep.sentence(self._id, self._now), keep)
        if not self._may_submit(device):
            return Standing(Availability.CLOSED, f"Free, but pool {device.pool_id} is closed to you.")
        return Standing(Availability.FREE, "Free.")

    def _may_submit(self, device: Device) -> bool:
        # A viewer submits nothing anywhere; to them free means what it means to everybody else.
        return device.pool.open or self._role != Role.SUBMITTER or device.pool_id in self._pools

    @cached_property
    def _role(self) -> Role:
        return rights.role_of(self._user)

    @cached_property
    def _pools(self) -> set[str]:
        rights_of_theirs = PoolRight.objects.filter(user_id=self._id or 0)
        return set(rights_of_theirs.values_list("pool_id", flat=True))


def standings(
    user: Someone, devices: Iterable[Device], readings: NowReadings, now: datetime
) -> dict[str, Standing]:
    """What somebody is told about each device, by its id; leases say what jobs hold."""
    reader = Reader(user, now)
    held = set(Lease.objects.active().values_list("device_id", flat=True))
    return {
        device.pk: reader.standing(device, held=device.pk in held, entry=readings.device(device.pk))
        for device in devices
    }
