"""What the history of a job says, and why the job is in its state."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from berth import words
from berth.field import AS_MANY
from berth.language import plural_text, text
from orchestrator.facts.events import Happened
from orchestrator.sentences.nouns import joined
from orchestrator.sentences.table import say_json, says
from orchestrator.sentences.waits import say_wait

Json = Mapping[str, Any]


@says(Happened.SUBMITTED)
def _submitted() -> str:
    return text("Submitted.")


@says(Happened.CANCELLED)
def _cancelled(by: str) -> str:
    return text("Cancelled by {by}.", by=by)


@says(Happened.HELD)
def _held(by: str) -> str:
    return text("Held by {by}.", by=by)


@says(Happened.RELEASED)
def _released(by: str) -> str:
    return text("Released by {by}.", by=by)


@says(Happened.PREEMPTED)
def _preempted(by: str) -> str:
    return text("Preempted by {by}.", by=by)


@says(Happened.CHANGED)
def _changed(changes: Json) -> str:
    # PostgreSQL's jsonb has an order of its own.
    sentence = ", ".join(_change(name, value) for name, value in sorted(changes.items()))
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _change(name: str, value: Any) -> str:
    what = text(name.removesuffix("_s").replace("_", " "))
    if value is None or value == []:
        return text("removed the {what}", what=what)
    shown = ", ".join(value) if name == "tags" else words.duration(value) if name.endswith("_s") else value
    return text("changed the {what} to {shown}", what=what, shown=shown)


@says(Happened.CODE_FETCHED)
def _code_fetched(url: str, ref: str, commit: str, notes: Sequence[str]) -> str:
    what = f"{commit[:12]} ({ref})" if ref and ref != commit else commit[:12]
    return " ".join([text("Fetched {what} from {url}.", what=what, url=url), *notes])


@says(Happened.MOVED)
def _moved(job: str, behind: bool) -> str:
    return text("Moved behind {job}.", job=job) if behind else text("Moved before {job}.", job=job)


@says(Happened.CHECKPOINT_ASKED)
def _checkpoint_asked() -> str:
    return text("A checkpoint was asked for.")


@says(Happened.PROFILE_ASKED)
def _profile_asked() -> str:
    return text("A profile of the next steps was asked for.")


@says(Happened.CHECKPOINT_DELETED)
def _checkpoint_deleted(name: str, step: int | None) -> str:
    return (
        text("Deleted {name}.", name=name)
        if step is None
        else text("Deleted {name} (step {step:,}).", name=name, step=step)
    )


@says(Happened.MADE_MODEL)
def _made_model(model: str, name: str, step: int | None) -> str:
    return (
        text("{name} became {model}.", name=name, model=model)
        if step is None
        else text("{name} (step {step:,}) became {model}.", name=name, step=step, model=model)
    )


@says(Happened.STARTS)
def _starts(devices: Sequence[str]) -> str:
    return text("Starts on {devices}.", devices=", ".join(map(words.labelled, devices)))


@says(Happened.MAKES_ROOM)
def _makes_room(job: str, owner: str) -> str:
    return text("Makes room for {job} of {owner}.", job=job, owner=owner)


@says(Happened.MAKES_ROOM_FOR_BOOKING)
def _makes_room_for_booking(booking: str) -> str:
    return text("Makes room for {booking}, as the calendar says.", booking=booking)


@says(Happened.ALLOCATION_ENDS)
def _allocation_ends(booking: str) -> str:
    return text("Stops with a checkpoint before {booking}.", booking=booking)


@says(Happened.GETS_ROOM)
def _gets_room(job: str, owner: str) -> str:
    return text("{job} of {owner} is stopped to make room.", job=job, owner=owner)


@says(Happened.NEVER_FITS)
def _never_fits(wait: Json) -> str:
    return say_wait("impossible", wait, now_s=0.0)


@says(Happened.NEEDED_JOB_ENDED)
def _needed_job_ended(job: str, state: str) -> str:
    return text("Depends on {job}, which has {state}.", job=job, state=text(ended_as(state)))


def ended_as(state: str) -> str:
    """A final state as a part of an English sentence: "has timed out"."""
    return {"timed_out": "timed out", "cancelled": "been cancelled"}.get(state, state)


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


@says(Happened.RUNS)
def _runs(
    attempt: int,
    checkpoint: str | None = None,
    step: int | None = None,
    anew: bool = False,
    damaged: int = 0,
    damage: str = "",
) -> str:
    """Where an attempt goes on; a later one that found no checkpoint says so."""
    if checkpoint:
        where = checkpoint if step is None else text("step {step:,}", step=step)
        return text("Attempt {attempt} runs, resumed from {where}.", attempt=attempt, where=where)
    if not anew:
        return text("Attempt {attempt} runs.", attempt=attempt)
    if not damaged:
        why = text("no checkpoint was kept")
    elif damaged == 1:
        why = text("the only checkpoint that was kept is damaged ({damage})", damage=damage)
    else:
        why = text(
            "{damaged} checkpoints were kept, and all are damaged (the newest: {damage})",
            damaged=damaged,
            damage=damage,
        )
    return text("Attempt {attempt} runs from the beginning: {why}.", attempt=attempt, why=why)


@says(Happened.SEEN_AGAIN)
def _seen_again() -> str:
    return text("The supervisor answers again.")


@says(Happened.SUPERVISOR_SILENT)
def _supervisor_silent(for_s: float) -> str:
    return text(
        "Its supervisor has given no sign of life for {for_s:.0f} s; "
        "its devices are kept until it answers or is gone.",
        for_s=for_s,
    )


@says(Happened.PROCESS_UNDYING)
def _process_undying(pid: int | None = None, name: str = "") -> str:
    who = (
        text("a process that it left") if pid is None else text("process {pid} ({name})", pid=pid, name=name)
    )
    return text(
        "It was killed, but {who} does not end: it waits in the kernel, mostly for a driver or a "
        "network disk. Its devices are kept until it is gone; if that does not come, restart the machine.",
        who=who,
    )


@says(Happened.SERVER_STOPPED)
def _server_stopped() -> str:
    return text("Berth was stopped; goes on at the next start.")


@says(Happened.TIME_LIMIT_REACHED)
def _time_limit_reached(limit_s: float) -> str:
    return text("Reached its time limit of {limit_s:g} s.", limit_s=limit_s)


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


@says(Happened.IDLE)
def _idle(idle_s: float, stop_after_s: float | None, session: bool = False) -> str:
    if session:
        then = (
            text(
                " After {stop_after_s} of that it gives its devices back: files stay, variables in "
                "memory are lost.",
                stop_after_s=words.duration(stop_after_s),
            )
            if stop_after_s
            else ""
        )
        return text("Has done nothing for {idle_s}.{then}", idle_s=words.duration(idle_s), then=then)
    then = (
        text(" It is stopped after {stop_after_s} of that.", stop_after_s=words.duration(stop_after_s))
        if stop_after_s
        else ""
    )
    return text(
        "Holds its devices and has not used them for {idle_s}.{then}",
        idle_s=words.duration(idle_s),
        then=then,
    )


@says(Happened.IDLE_STOPPED)
def _idle_stopped(idle_s: float, pool: str) -> str:
    return text(
        "Its devices did nothing for {idle_s}; pool {pool} stops such jobs.",
        idle_s=words.duration(idle_s),
        pool=pool,
    )


@says(Happened.SESSION_ASLEEP)
def _session_asleep(idle_s: float, pool: str, kept_s: float | None) -> str:
    known = {"idle": words.duration(idle_s), "pool": pool}
    if not kept_s:
        return text(
            "Did nothing for {idle} and gave its devices back, as pool {pool} asks. "
            "Its files are kept; wake it to go on.",
            **known,
        )
    return text(
        "Did nothing for {idle} and gave its devices back, as pool {pool} asks. "
        "Its files are kept for {kept}; wake it to go on.",
        kept=words.duration(kept_s),
        **known,
    )


@says(Happened.SESSION_EXPIRED)
def _session_expired(asleep_s: float, pool: str) -> str:
    return text(
        "Was asleep for {asleep_s}; pool {pool} ends such sessions.",
        asleep_s=words.duration(asleep_s),
        pool=pool,
    )


@says(Happened.DEVICE_FAULTY)
def _device_faulty(device: str, error: str) -> str:
    return text("{device} is faulty: {error}", device=words.labelled(device), error=error)


@says(Happened.DEVICE_ERROR)
def _device_error(device: str, xid: int, meaning: str) -> str:
    return text("{device} reported {meaning}", device=words.labelled(device), meaning=text(meaning))


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


@says(Happened.RETRIED)
def _retried(
    ending: Json,
    failure: int,
    retries: int,
    delay_s: float,
    claim_bytes: int | None = None,
    lighter: str | None = None,
    not_resumable: bool = False,
    back_to: int | None = None,
    kept_devices: Sequence[str] = (),
    kept_until: str | None = None,
) -> str:
    when = text("now") if delay_s == 0 else text("in {delay_s:.0f} s", delay_s=delay_s)
    if not_resumable:
        when += text(" without giving the trainer its checkpoint, on which it failed")
    if back_to is not None:
        when += text(
            " on {back_to}, where it ran before: it did not resume on another number",
            back_to=words.plural(back_to, "device"),
        )
    if claim_bytes is not None:
        when += text(" with {claim_bytes} on each device", claim_bytes=words.size(claim_bytes))
    if lighter is not None:
        when += text(" with less memory: {lighter}", lighter=lighter)
    return text(
        "{ending} Retry {failure} of {retries} {when}.{kept}",
        ending=say_json(ending),
        failure=failure,
        retries=retries,
        when=when,
        kept=_kept(kept_devices, kept_until),
    )


def _kept(devices: Sequence[str], until: str | None) -> str:
    if until is None:
        return ""
    named = words.listed(list(devices))
    at = datetime.fromisoformat(until).astimezone(UTC)
    return plural_text(
        " {devices} is kept for it until {at} UTC.",
        " {devices} are kept for it until {at} UTC.",
        len(devices),
        devices=f"{named[:1].upper()}{named[1:]}",
        at=f"{at:%H:%M:%S}",
    )


@says(Happened.LAUNCHED_AGAIN)
def _launched_again(ending: Json) -> str:
    return text("{ending} Trying again.", ending=say_json(ending))


@says(Happened.WAITS_FOR_DISK)
def _waits_for_disk(ending: Json, delay_s: float) -> str:
    return text(
        "{ending} Trying again in {delay_s:.0f} s, and until there is room.",
        ending=say_json(ending),
        delay_s=delay_s,
    )


@says(Happened.GIVEN_UP)
def _given_up(ending: Json, same_again: bool = False, retries_used: int = 0) -> str:
    why = ""
    if same_again:
        why = text("Not retried: the same code would fail again.")
    elif retries_used:
        why = plural_text("The only retry is used.", "All {count} retries are used.", retries_used)
    return f"{say_json(ending)} {why}".strip()


@says(Happened.GOES_ON_LATER)
def _goes_on_later(
    ending: Json,
    job: str | None = None,
    owner: str = "",
    checkpoint: str | None = None,
    step: int | None = None,
    total_steps: int | None = None,
) -> str:
    """Who got the devices of a job that was stopped, and from where it will go on."""
    stopped = (
        say_json(ending) if job is None else text("Made room for {job} of {owner}.", job=job, owner=owner)
    )
    if checkpoint is None:
        return text(
            "{stopped} It kept no checkpoint, so it will restart from the beginning.", stopped=stopped
        )
    if step is None:
        return text("{stopped} It will go on from {checkpoint}.", stopped=stopped, checkpoint=checkpoint)
    if not total_steps:
        return text("{stopped} It will go on from step {step:,}.", stopped=stopped, step=step)
    return text(
        "{stopped} It will go on from step {step:,} of {total:,}.",
        stopped=stopped,
        step=step,
        total=total_steps,
    )


@says(Happened.QUEUED_BY_DOCTOR)
def _queued_by_doctor() -> str:
    return text("Its last attempt is gone; doctor queued it again.")
