"""Whether a device is free for a person, and if not, why: one answer for tiles, lists, REST and the command line."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property

from berth.shared import words
from berth.shared.language import text
from orchestrator.live.readings import DeviceEntry
from orchestrator.models import Device, Health, PoolRight, Role
from orchestrator.people import rights
from orchestrator.people.quotas import DevicesLeft, devices_left
from orchestrator.people.rights import Someone
from orchestrator.scheduler.passes.restrictions import Restriction, read_restrictions
from orchestrator.sentences.errors import said

FOREIGN_SHOWN_BYTES = 64 * words.MIB  # less is a display server and not shown


class Availability(StrEnum):
    FREE = "free"  # a job of this person could start on it now
    KEPT = "kept"  # no job holds it, but another job or other people have a claim to it
    LIMITED = "limited"  # no job holds it, but this person's limit is used up
    CLOSED = "closed"  # no job holds it, but its pool takes no jobs of this person
    HELD = "held"  # by jobs of Berth
    FOREIGN = "foreign"  # by external processes
    OUT = "out"  # drained, disabled or broken
    UNREAD = "unread"  # its users are unknown, so nothing starts there


@dataclass(frozen=True, slots=True)
class DeviceAvailability:
    """Whether one device is free for one person, and the sentence that says so."""

    state: Availability
    sentence: str
    keep: Restriction | None = None  # for KEPT: the reason

    @property
    def is_free(self) -> bool:
        return self.state == Availability.FREE


class AvailabilityReader:
    """Judges devices for one person: which devices are kept, and which pools take this person's jobs."""

    def __init__(self, user: Someone, now: datetime) -> None:
        self._user = user
        self._id = user.pk
        self._name = user.get_username()
        self._now = now
        self._restrictions: Mapping[str, list[Restriction]] = read_restrictions(now)

    def restriction(self, device_id: str) -> Restriction | None:
        """What keeps this person from the device apart from its jobs; None: nothing."""
        restrictions = self._restrictions.get(device_id, ())
        return next((one for one in restrictions if one.binds(self._name)), None)

    def judge(self, device: Device, *, held: bool, entry: DeviceEntry | None) -> DeviceAvailability:
        """
        Args:
            device: with its pool.
            held: whether a job of Berth is on it.
            entry: its newest reading; None without one.
        """
        if device.health != Health.OK:
            return DeviceAvailability(Availability.OUT, device.health_reason or text(device.health))
        if held:
            return DeviceAvailability(Availability.HELD, text("Held by a job."))
        if not device.usable:
            return DeviceAvailability(Availability.OUT, text("Takes no new jobs."))
        if device.kind == "gpu" and (entry is None or "used_bytes" not in entry):
            return DeviceAvailability(
                Availability.UNREAD, text("No readings at the moment, so nothing starts on it.")
            )
        if entry is not None and entry.get("foreign_bytes", 0) > FOREIGN_SHOWN_BYTES:
            return DeviceAvailability(Availability.FOREIGN, text("Used by processes that are not Berth's."))
        return self._unheld(device)

    def _unheld(self, device: Device) -> DeviceAvailability:
        keep = self.restriction(device.pk)
        if keep is not None:
            return DeviceAvailability(Availability.KEPT, keep.sentence(self._id, self._now), keep)
        if not self.may_submit(device):
            return DeviceAvailability(
                Availability.CLOSED, text("Free, but pool {pool} is closed to you.", pool=device.pool_id)
            )
        if (limit := self._limit_reached(device)) is not None:
            sentence = text("Free, but your limit of {limit} is used up.", limit=said(limit))
            return DeviceAvailability(Availability.LIMITED, sentence)
        return DeviceAvailability(Availability.FREE, text("Free."))

    def _limit_reached(self, device: Device) -> str | None:
        """The limit that keeps this person from one more device of this kind and pool."""
        places = [device.pool_id] if device.kind == "cpu" else [None, device.pool_id]
        limits = [self.left[place] for place in places if place in self.left]
        return next((each.limit for each in limits if each.devices == 0), None)

    @cached_property
    def left(self) -> Mapping[str | None, DevicesLeft]:
        """What this person's limits leave them, by pool; None: over all pools."""
        return devices_left(self._id, self._now) if self._id is not None else {}

    def may_submit(self, device: Device) -> bool:
        # A viewer submits nothing anywhere; for them "free" means the same as for everybody else.
        return device.pool.open or self._role != Role.SUBMITTER or device.pool_id in self._pools

    @cached_property
    def _role(self) -> Role:
        return rights.role_of(self._user)

    @cached_property
    def _pools(self) -> set[str]:
        rights_of_theirs = PoolRight.objects.filter(user_id=self._id or 0)
        return set(rights_of_theirs.values_list("pool_id", flat=True))
