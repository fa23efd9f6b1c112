"""berth calendar: reserved times and maintenance."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from berth.arguments import WrongUse, start_time
from berth.cli.choosing import connect
from berth.cli.printing import remark, safe, say, show_json
from berth.cli.tables import grid, terminal
from berth.client import Booking


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
        "pool": pool,
        "kind": "maintenance" if maintenance else "reservation",
        "devices": int(devices) if devices.isdigit() else [one.strip() for one in devices.split(",")],
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


def remove_entry(entry: int, *, as_json: bool) -> None:
    connect().unbook(entry)
    if as_json:
        show_json({"removed": entry})
    else:
        say(f"Removed {entry}; its devices are free for everybody again.")
