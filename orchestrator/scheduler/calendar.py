"""Bookings of the calendar: enter, check and delete them."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, User
from django.db import transaction
from django.utils import timezone

from orchestrator.exceptions import Forbidden, Impossible, NotFound, Sentence
from orchestrator.live import wakeups
from orchestrator.models import Booking, BookingKind, Device, Pool
from orchestrator.models.bookings import WEEK
from orchestrator.people import audit, rights
from orchestrator.people.quotas import Rulebook

LOOK_AHEAD = timedelta(weeks=9)  # for overlaps; weekly bookings overlap in their first weeks or never
LONGEST = timedelta(days=366)
FAR = datetime.max.replace(tzinfo=timezone.get_fixed_timezone(0))
Span = tuple[datetime, datetime]


def make(
    by: AbstractBaseUser,
    *,
    devices: int | Sequence[str],
    people: Sequence[str],
    address: str = "",
    **columns: Any,
) -> Booking:
    """Enter a reservation for people or maintenance; ``columns`` are fields of ``Booking``.

    Raises:
        Impossible: the booking contradicts itself, another booking, or the rights and limits of its people.
    """
    booking = Booking(**columns, created_by=by.get_username())
    booking.count = devices if isinstance(devices, int) else None
    named = [] if isinstance(devices, int) else _find_devices(booking.pool, devices)
    users = _find_people(people)
    with transaction.atomic():
        # The bookings of one pool are entered one at a time.
        Pool.objects.select_for_update().get(pk=booking.pool_id)
        check(booking, named, users)
        booking.save()
        booking.devices.set(named)
        booking.people.set(users)
        audit.record(by, "reservation.made", f"pool {booking.pool_id}", say(booking), address=address)
        wakeups.schedule()
    return booking


def change(
    booking: Booking,
    *,
    by: AbstractBaseUser,
    devices: int | Sequence[str] | None = None,
    people: Sequence[str] | None = None,
    address: str = "",
    **columns: Any,
) -> None:
    """Change a booking that stands; what is not given stays as it is. A time that has begun may go on longer.

    Raises:
        Impossible: as for ``make``; the booking then stays as it was.
    """
    with transaction.atomic():
        Pool.objects.select_for_update().get(pk=booking.pool_id)
        booking.refresh_from_db()  # somebody else may have changed it while we waited
        before = say(booking)
        for name, value in columns.items():
            setattr(booking, name, value)
        if isinstance(devices, int):
            booking.count, named = devices, []
        elif devices is not None:
            booking.count, named = None, _find_devices(booking.pool, devices)
        else:
            named = list(booking.devices.all())
        users = list(booking.people.all()) if people is None else _find_people(people)
        check(booking, named, users)
        booking.save()
        booking.devices.set(named)
        booking.people.set(users)
        text = f"{before} Now: {say(Booking.objects.get(pk=booking.pk))}"
        audit.record(by, "reservation.changed", f"pool {booking.pool_id}", text, address=address)
        wakeups.schedule()


def remove(booking: Booking, *, by: AbstractBaseUser, address: str = "") -> None:
    with transaction.atomic():
        audit.record(by, "reservation.deleted", f"pool {booking.pool_id}", say(booking), address=address)
        booking.delete()
        wakeups.schedule()


def say(booking: Booking) -> str:
    """Describe a booking in a sentence."""
    what = f"{booking.count} devices" if booking.count else ", ".join(map(str, booking.devices.all()))
    until = "without end" if booking.until is None else f"until {booking.until:%Y-%m-%d %H:%M}"
    often = ", each week" if booking.weekly else ""
    return f"{booking.name} ({booking.kind}): {what}, from {booking.start:%Y-%m-%d %H:%M} {until}{often}."


def check(booking: Booking, devices: Collection[Device], people: Collection[User]) -> None:
    """
    Raises:
        Impossible: see ``make``.
    """
    _check_times(booking, timezone.now())
    there = booking.pool.devices.count()
    wanted = len(devices) or booking.count or 0
    if not 1 <= wanted <= there:
        raise _no(
            "devices",
            Sentence(
                "Pool {pool_id} has {there} devices; {wanted} cannot be booked.",
                pool_id=booking.pool_id,
                there=there,
                wanted=wanted,
            ),
        )
    _check_people(booking, people, wanted)
    _check_others(booking, devices, there)


def _check_times(booking: Booking, now: datetime) -> None:
    start, until = booking.start, booking.until
    if until is None and booking.kind == BookingKind.RESERVATION:
        raise _no("until", "A reservation needs an end; only maintenance may be without one.")
    if until is not None and until <= start:
        raise _no("until", "It ends before it begins; give an end after the start.")
    if until is not None and until <= now and not booking.weekly:
        raise _no("until", "It is over already; give times that are still to come.")
    if start > now + LONGEST or (until is not None and until - start > LONGEST):
        raise _no("from", "A booking begins within a year and lasts a year at most.")
    if booking.weekly and (until is None or until - start > WEEK):
        raise _no(
            "weekly", "Each week begins the next one before this one has ended; make it one long booking."
        )
    last = booking.repeat_until
    if last is not None and not booking.weekly:
        raise _no("repeat_until", "Only what is weekly repeats; set weekly, or leave repeat_until out.")
    if last is not None and (last < start or booking.occurrence(now) is None):
        raise _no("repeat_until", "The repetition ends before anything of it is left to come.")


def _check_people(booking: Booking, people: Collection[User], wanted: int) -> None:
    if booking.kind == BookingKind.MAINTENANCE:
        if people:
            raise _no("people", "Maintenance is for nobody; make it a reservation, or leave people out.")
        return
    if not people:
        raise _no("people", "Say for whom; devices kept for nobody are maintenance.")
    rules = Rulebook.read()
    for user in people:
        try:
            rights.check_submit(user, booking.pool)
        except Forbidden:
            raise _no(
                "people",
                Sentence(
                    "{user} may not submit to pool {pool_id}; give the right first.",
                    user=user.get_username(),
                    pool_id=booking.pool_id,
                ),
            ) from None
    limits = [_most_devices(rules, user, booking.pool_id) for user in people]
    most = sum(limit for limit in limits if limit is not None)
    if None not in limits and most < wanted:
        raise _no(
            "devices",
            Sentence(
                "Their limits allow {most} at once; of {wanted} some would stay idle.",
                most=most,
                wanted=wanted,
            ),
        )


def _most_devices(rules: Rulebook, user: User, pool_id: str) -> int | None:
    limits = [rules.of(user.pk, place).max_devices for place in (None, pool_id)]
    return min((limit for limit in limits if limit is not None), default=None)


def _check_others(booking: Booking, devices: Collection[Device], there: int) -> None:
    """Check that at no time more devices are booked than there are, and none twice."""
    now = timezone.now()
    others = Booking.objects.not_over(now).filter(pool=booking.pool_id).exclude(pk=booking.pk)
    occupied = [
        (other, {device.pk for device in other.devices.all()}, list(spans(other, now)))
        for other in others.prefetch_related("devices")
    ]
    mine = {device.pk for device in devices}
    for begin, end in spans(booking, now):
        meeting = [
            (other, named, max(begin, start))
            for other, named, times in occupied
            for start, until in times
            if start < end and begin < until
        ]
        for other, named, _ in meeting:
            if shared := mine & named:
                raise _no(
                    "devices",
                    Sentence(
                        "{shared} is booked for {other} at that time.", shared=min(shared), other=other.name
                    ),
                )
        for moment in {begin, *(at for _, _, at in meeting)}:
            on = [other for other, named, times in occupied if any(s <= moment < u for s, u in times)]
            booked = sum(other.count or len(names) for other, names, _ in occupied if other in on)
            wanted = len(mine) or booking.count or 0
            if booked + wanted > there:
                names = ", ".join(sorted(other.name for other in on))
                raise _no(
                    "devices",
                    Sentence(
                        "Pool {pool_id} has {there} devices, and {booked} are booked at that time ({names}).",
                        pool_id=booking.pool_id,
                        there=there,
                        booked=booked,
                        names=names,
                    ),
                )


def spans(booking: Booking, now: datetime) -> Iterator[Span]:
    """The times of a booking that are not over, up to ``LOOK_AHEAD``."""
    occurrence = booking.occurrence(now)
    while occurrence is not None:
        start, until = occurrence
        yield start, until or FAR
        if not booking.weekly or until is None or start > now + LOOK_AHEAD:
            return
        occurrence = booking.occurrence(until)


def _find_devices(pool: Pool, ids: Sequence[str]) -> list[Device]:
    rows = {device.pk: device for device in pool.devices.all()}
    if missing := [id_ for id_ in ids if id_ not in rows]:
        raise _no(
            "devices", Sentence("Pool {pool} has no device {missing!r}.", pool=pool, missing=missing[0][:96])
        )
    return [rows[id_] for id_ in dict.fromkeys(ids)]


def _find_people(names: Sequence[str]) -> list[User]:
    rows = {user.get_username(): user for user in User.objects.filter(username__in=names, is_active=True)}
    if missing := [name for name in names if name not in rows]:
        raise _no("people", Sentence("There is no user {missing!r}.", missing=missing[0][:80]))
    return [rows[name] for name in dict.fromkeys(names)]


def find_pool(name: str) -> Pool:
    """
    Raises:
        NotFound: there is no pool of this name.
    """
    pool = Pool.objects.filter(pk=name).first()
    if pool is None:
        raise NotFound(Sentence("There is no pool {name!r}.", name=name[:64]))
    return pool


def _no(field: str, sentence: str) -> Impossible:
    return Impossible(sentence, fields={field: [sentence]})
