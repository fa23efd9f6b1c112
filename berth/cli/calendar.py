"""berth calendar: reserved times and maintenance."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from berth.cli.choosing import connect
from berth.cli.printing import remark, safe, say, show_json
from berth.cli.tables import grid, terminal
from berth.client import Booking
from berth.shared.arguments import WrongUse, start_time


def show_calendar(pool: str | None, *, as_json: bool) -> None:
    bookings = connect().calendar(pool=pool)
    if as_json:
        show_json([booking.json for booking in bookings])
        return
    if not bookings:
        remark("Nothing is reserved.")
        return
    table = grid("id", "name", "pool", "devices", "for", "from", "until", "")
    for booking in bookings:
        table.add_row(*_cells(booking))
    terminal().print(table)


def _cells(each: Booking) -> list[str]:
    following = each.next or {"from": each.json["from"], "until": each.json["until"]}
    often = "weekly" if each.weekly else ""
    return [
        str(each.id),
        safe(each.name),
        each.pool,
        str(each.count) if each.count else ", ".join(map(safe, each.devices)),
        ", ".join(map(safe, each.people)) or "nobody: maintenance",
        _local(following["from"]),
        _local(following["until"]),
        " ".join(filter(None, ["now" if each.active else "", often])),
    ]


def _local(text: str | None) -> str:
    if text is None:
        return "removed"
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M")


def add_entry(
    name: str,
    *,
    devices: str,
    people: Sequence[str],
    start: str,
    until: str | None,
    pool: str,
    weekly: bool,
    maintenance: bool,
    note: str,
    as_json: bool,
) -> None:
    """Add a booking; ``devices`` is a number or ids separated by commas.

    Raises:
        WrongUse: a time that cannot be read, or not exactly one of people and maintenance.
    """
    if bool(people) == maintenance:
        raise WrongUse("Give either people (--for NAME) or --maintenance.")
    body: Mapping[str, object] = {
        "name": name,
        **({"note": note} if note else {}),  # servers of earlier versions do not know it
        "pool": pool,
        "kind": "maintenance" if maintenance else "reservation",
        "devices": _devices(devices),
        "people": list(people),
        "from": start_time(start),
        "until": None if until is None else start_time(until),
        "weekly": weekly,
    }
    made = connect().book(body)
    if as_json:
        show_json(made.json)
    else:
        say(f"Added {safe(made.name)} as {made.id}. Remove it with: berth calendar remove {made.id}")


def change_entry(
    entry: int,
    *,
    name: str | None,
    note: str | None,
    devices: str | None,
    people: Sequence[str],
    start: str | None,
    until: str | None,
    as_json: bool,
) -> None:
    """Change what is given of a booking.

    Raises:
        WrongUse: nothing was given, or a time that cannot be read.
    """
    given: dict[str, object] = {
        "name": name,
        "note": note,
        "devices": None if devices is None else _devices(devices),
        "people": list(people) or None,
        "from": None if start is None else start_time(start),
        "until": None if until is None else start_time(until),
    }
    changes = {field: value for field, value in given.items() if value is not None}
    if not changes:
        raise WrongUse("Say what to change: --from, --until, --devices, --for, --name or --note.")
    changed = connect().change_booking(entry, changes)
    if as_json:
        show_json(changed.json)
    else:
        say(
            f"Changed {safe(changed.name)}: {_local(changed.json['from'])} to {_local(changed.json['until'])}."
        )


def _devices(text: str) -> int | list[str]:
    return int(text) if text.isdigit() else [one.strip() for one in text.split(",")]


def remove_entry(entry: int, *, as_json: bool) -> None:
    connect().unbook(entry)
    if as_json:
        show_json({"removed": entry})
    else:
        say(f"Removed {entry}; its devices are free for everybody again.")
