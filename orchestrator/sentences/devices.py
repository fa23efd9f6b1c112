"""What the history of a job says about its devices: how many it has, their memory and their faults."""

from collections.abc import Sequence
from datetime import UTC, datetime

from berth.shared import words
from berth.shared.field import AS_MANY
from berth.shared.language import text
from orchestrator.facts.events import Happened, HealthFact
from orchestrator.sentences.nouns import joined
from orchestrator.sentences.table import says


@says(Happened.FEWER_DEVICES)
def _fewer_devices(devices: int, asked: int, pool: str) -> str:
    return text(
        "Takes {devices} of the {asked} devices that it asks for: pool {pool} has no more that work.",
        devices=devices,
        asked=asked,
        pool=pool,
    )


@says(Happened.ALL_DEVICES)
def _all_devices(asked: int, pool: str) -> str:
    return text("All {asked} devices that it asks for work again in pool {pool}.", asked=asked, pool=pool)


@says(Happened.DEVICES_CHOSEN)
def _devices_chosen(
    devices: int,
    least: int,
    most: int,
    used_percent: int,
    measured: bool,
    elastic: bool,
    wanted: bool,
    failed: bool = False,
) -> str:
    """Why a job got this number of devices, and what would change it."""
    asked = (
        text("{least} or more", least=least)
        if most == AS_MANY
        else text("{least} to {most}", least=least, most=most)
    )
    source = (
        text("by the steps/s of earlier runs")
        if measured
        else text("as a guess, because no run has shown it")
    )
    taken = words.plural(devices, "device")
    said = (
        text("Takes {devices}; it allows {asked}.", devices=taken, asked=asked)
        if most > least
        else text("Takes {devices}.", devices=taken)
    )
    said += text(
        " Each does {used_percent} % of what one alone would do, {source}.",
        used_percent=used_percent,
        source=source,
    )
    if wanted and failed:
        said += text(" Keeps this number while it runs: this code did not resume on another one.")
    elif wanted and not elastic:
        said += text(
            " Keeps this number while it runs: the script has not been seen to resume on another one."
        )
    return said


@says(Happened.RESIZED)
def _resized(
    before: int,
    after: int,
    end_before: str | None = None,
    end_after: str | None = None,
    steps_per_s: float | None = None,
) -> str:
    if end_before is None or end_after is None:
        return text("{before} -> {after} devices.", before=before, after=after)
    was, now = (datetime.fromisoformat(at).astimezone(UTC) for at in (end_before, end_after))
    day = "" if was.date() == now.date() else "%Y-%m-%d "
    return text(
        "{before} -> {after} devices: was to end {was}, now {now} UTC.",
        before=before,
        after=after,
        was=f"{was:{day}%H:%M}",
        now=f"{now:{day}%H:%M}",
    )


@says(Happened.MOVES_APART)
def _moves_apart(slowed: str, beside: str, percent: int, most_percent: int) -> str:
    return text(
        "{slowed} is {percent} % slower beside {beside}, and the pool allows {most_percent} %: moves "
        "to a device that is idle.",
        slowed=slowed,
        percent=percent,
        beside=beside,
        most_percent=most_percent,
    )


@says(Happened.CLAIM_OUTGROWN)
def _claim_outgrown(rank: int, held_bytes: int, device: str, claimed_bytes: int) -> str:
    held, claimed = words.size(held_bytes), words.size(claimed_bytes)
    return text(
        "Rank {rank} held {held} on {device}, more than the {claimed} it had claimed.",
        rank=rank,
        held=held,
        device=words.labelled(device),
        claimed=claimed,
    )


@says(Happened.GIVES_MEMORY_BACK)
def _gives_memory_back(
    held_bytes: int, claimed_bytes: int, device: str, job: str = "", owner: str = "", by: Sequence[str] = ()
) -> str:
    known = {
        "held": words.size(held_bytes),
        "claimed": words.size(claimed_bytes),
        "device": words.labelled(device),
    }
    if job:
        return text(
            "Holds {held} on {device} and asked for {claimed}; "
            "gives way, because {job} of {owner} needs the memory beyond that.",
            job=job,
            owner=owner,
            **known,
        )
    if by:
        return text(
            "Holds {held} on {device} and asked for {claimed}; "
            "gives way, because processes of {by} took the memory beyond that.",
            by=joined(by),
            **known,
        )
    return text(
        "Holds {held} on {device} and asked for {claimed}; "
        "gives way, because the jobs beside it need the memory beyond that.",
        **known,
    )


@says(Happened.DEVICE_FAULTY)
def _device_faulty(device: str, error: str) -> str:
    return text("{device} is faulty: {error}", device=words.labelled(device), error=text(error))


@says(Happened.DEVICE_ERROR)
def _device_error(device: str, xid: int, meaning: str, what: str = "", advice: str = "") -> str:
    if what:
        meaning = _xid(xid, what, advice)
    return text("{device} reported {meaning}", device=words.labelled(device), meaning=meaning)


@says(HealthFact.XID)
def _xid(xid: int, what: str, advice: str) -> str:
    return text("Xid {xid}: {what}. {advice}", xid=xid, what=text(what), advice=text(advice))


@says(HealthFact.GONE)
def _gone() -> str:
    return text("It is not there any more.")


@says(HealthFact.SERVER_SILENT)
def _server_silent(server: str) -> str:
    return text("The server {server} does not answer.", server=server)


@says(HealthFact.HELD_WITHOUT_SIGN)
def _held_without_sign(job: str) -> str:
    return text("Held by {job}, which gives no sign of life.", job=job)


@says(HealthFact.LOST)
def _lost() -> str:
    return text("The driver has lost it: it fell off the bus. Reset it, or reboot the server.")


@says(HealthFact.NEEDS_RESET)
def _needs_reset() -> str:
    return text("It needs a reset before it can be used again.")


@says(HealthFact.ALLOCATION_ENDED)
def _allocation_ended(system: str) -> str:
    return text("The allocation of {system} that lent it has ended.", system=system)


@says(Happened.DEVICE_DRAINED)
def _device_drained(device: str, by: str, reason: str, until_s: float | None) -> str:
    why = f": {reason}" if reason else ""
    end = ""
    if until_s is not None:
        until = f"{datetime.fromtimestamp(until_s, UTC):%Y-%m-%d %H:%M}"
        end = text(" It is out of use until {until} UTC.", until=until)
    return text(
        "{by} takes {device} out of use{why}. This job goes on; nothing new starts there.{end}",
        by=by,
        device=words.labelled(device),
        why=why,
        end=end,
    )


@says(Happened.SLOWED_DOWN)
def _slowed_down(device: str, by: str, ranks: int) -> str:
    device = words.labelled(device)
    if ranks > 1:
        return text("{device} is slowed down by {by}; all ranks wait for the slowest.", device=device, by=by)
    return text("{device} is slowed down by {by}.", device=device, by=by)
