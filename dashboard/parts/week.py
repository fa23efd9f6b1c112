"""A week of bookings as columns of days in the reader's time zone; bookings at the same time lie side by side."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from orchestrator.models import Booking, BookingKind
from orchestrator.scheduler import calendar

DAYS = 7
LEAST = timedelta(minutes=50)  # drawn at least this long, so that its name has a line
DAY_S = 86_400  # of each column, also on days of 23 or 25 hours: rows are what the clock on the wall says
HOURS = tuple(range(24))


@dataclass(frozen=True, slots=True)
class Block:
    """The part of an occurrence that lies in one day; places in percent of the day's column."""

    booking: Booking
    start: datetime  # of the whole occurrence
    until: datetime | None  # None: until the booking is deleted
    top: float
    height: float
    left: float
    width: float
    is_mine: bool

    @property
    def looks(self) -> str:
        """Classes of its kind and of whose it is."""
        if self.booking.kind == BookingKind.MAINTENANCE:
            return "is-maintenance"
        return "is-mine" if self.is_mine else ""

    @property
    def place(self) -> str:
        return f"top:{self.top}%;height:{self.height}%;left:{self.left}%;width:{self.width}%"


@dataclass(frozen=True, slots=True)
class Day:
    date: date
    start: datetime
    is_today: bool
    is_past: bool
    first_hour: int  # that can still be booked; 24: none
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Week:
    days: Sequence[Day]
    bookings: Sequence[Booking]  # those with an occurrence in the week, by start

    @property
    def first(self) -> date:
        return self.days[0].date

    @property
    def last(self) -> date:
        return self.days[-1].date

    @property
    def before(self) -> date:
        return self.first - timedelta(days=DAYS)

    @property
    def after(self) -> date:
        return self.first + timedelta(days=DAYS)


@dataclass(frozen=True, slots=True)
class _Piece:
    booking: Booking
    span: calendar.Span
    begin: datetime
    end: datetime


def monday_of(day: date) -> date:
    return day - timedelta(days=day.weekday())


def lay_out(bookings: Iterable[Booking], monday: date, *, now: datetime, reader_id: int | None) -> Week:
    """Place the occurrences of ``bookings`` in the week from ``monday``.

    ``people`` should be prefetched; past occurrences are shown too.

    Args:
        now: in the time zone of the reader, whose days and hours these are.
    """
    zone, today = now.tzinfo or UTC, now.date()
    edges = [_midnight(monday + timedelta(days=number), zone) for number in range(DAYS + 1)]
    pairs = [(booking, span) for booking in bookings for span in _spans(booking, edges[0], edges[-1])]
    days = [
        Day(
            date=(this := monday + timedelta(days=number)),
            start=edges[number],
            is_today=this == today,
            is_past=this < today,
            first_hour=24 if this < today else now.hour if this == today else 0,
            blocks=_blocks(pairs, edges[number], edges[number + 1], reader_id),
        )
        for number in range(DAYS)
    ]
    present = {booking.pk: booking for booking, _ in sorted(pairs, key=lambda pair: pair[1][0])}
    return Week(days, list(present.values()))


def _midnight(day: date, zone: tzinfo) -> datetime:
    return datetime.combine(day, time(), zone)


def _spans(booking: Booking, start: datetime, end: datetime) -> Iterator[calendar.Span]:
    return (span for span in calendar.spans(booking, start) if span[0] < end)


def _blocks(
    pairs: Iterable[tuple[Booking, calendar.Span]], start: datetime, end: datetime, reader_id: int | None
) -> list[Block]:
    pieces = sorted(
        (
            _Piece(booking, span, max(span[0], start), min(span[1], end))
            for booking, span in pairs
            if span[0] < end and span[1] > start
        ),
        key=lambda piece: (piece.begin, piece.booking.pk),
    )
    lanes = _lanes(pieces)
    width = 100 / (max(lanes, default=0) + 1)
    return [
        Block(
            booking=piece.booking,
            start=piece.span[0],
            until=None if piece.span[1] == calendar.FAR else piece.span[1],
            top=_percent(_wall_s(piece.begin, start) / DAY_S),
            height=_percent(_length_s(piece, start, end) / DAY_S),
            left=round(lane * width, 2),
            width=round(width, 2),
            is_mine=reader_id in {person.pk for person in piece.booking.people.all()},
        )
        for piece, lane in zip(pieces, lanes, strict=True)
    ]


def _lanes(pieces: Sequence[_Piece]) -> list[int]:
    """For each piece, the first column that is free from its start on."""
    ends: list[datetime] = []
    lanes = []
    for piece in pieces:
        lane = next((index for index, end in enumerate(ends) if end <= piece.begin), len(ends))
        end = max(piece.end, piece.begin + LEAST)
        ends[lane : lane + 1] = [end]
        lanes.append(lane)
    return lanes


def _length_s(piece: _Piece, start: datetime, end: datetime) -> float:
    until_s = DAY_S if piece.end == end else _wall_s(piece.end, start)
    return max(until_s - _wall_s(piece.begin, start), LEAST.total_seconds())


def _wall_s(at: datetime, start: datetime) -> float:
    """Seconds on the clock of ``start``'s zone since ``start``."""
    local = at.astimezone(start.tzinfo)
    return (local.replace(tzinfo=None) - start.replace(tzinfo=None)).total_seconds()


def _percent(share: float) -> float:
    return round(100 * share, 2)
