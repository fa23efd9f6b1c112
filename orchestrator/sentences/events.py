"""What the history of a job says, and why the job is in its state."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from berth import words
from berth.field import AS_MANY
from orchestrator.facts.events import Happened
from orchestrator.sentences.table import say_json, says
from orchestrator.sentences.waits import say_wait

Json = Mapping[str, Any]


@says(Happened.SUBMITTED)
def _submitted() -> str:
    return "Submitted."


@says(Happened.CANCELLED)
def _cancelled(by: str) -> str:
    return f"Cancelled by {by}."


@says(Happened.HELD)
def _held(by: str) -> str:
    return f"Held by {by}."


@says(Happened.RELEASED)
def _released(by: str) -> str:
    return f"Released by {by}."


@says(Happened.PREEMPTED)
def _preempted(by: str) -> str:
    return f"Preempted by {by}."


@says(Happened.CHANGED)
def _changed(changes: Json) -> str:
    # PostgreSQL's jsonb has an order of its own.
    sentence = ", ".join(_change(name, value) for name, value in sorted(changes.items()))
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _change(name: str, value: Any) -> str:
    what = name.removesuffix("_s").replace("_", " ")
    if value is None or value == []:
        return f"removed the {what}"
    shown = ", ".join(value) if name == "tags" else words.duration(value) if name.endswith("_s") else value
    return f"changed the {what} to {shown}"


@says(Happened.CODE_FETCHED)
def _code_fetched(url: str, ref: str, commit: str, notes: Sequence[str]) -> str:
    what = f"{commit[:12]} ({ref})" if ref and ref != commit else commit[:12]
    return " ".join([f"Fetched {what} from {url}.", *notes])


@says(Happened.MOVED)
def _moved(job: str, behind: bool) -> str:
    return f"Moved {'behind' if behind else 'before'} {job}."


@says(Happened.CHECKPOINT_ASKED)
def _checkpoint_asked() -> str:
    return "A checkpoint was asked for."


@says(Happened.PROFILE_ASKED)
def _profile_asked() -> str:
    return "A profile of the next steps was asked for."


@says(Happened.CHECKPOINT_DELETED)
def _checkpoint_deleted(name: str, step: int | None) -> str:
    return f"Deleted {name}." if step is None else f"Deleted {name} (step {step:,})."


@says(Happened.MADE_MODEL)
def _made_model(model: str, name: str, step: int | None) -> str:
    return f"{name} became {model}." if step is None else f"{name} (step {step:,}) became {model}."


@says(Happened.STARTS)
def _starts(devices: Sequence[str]) -> str:
    return f"Starts on {', '.join(devices)}."


@says(Happened.MAKES_ROOM)
def _makes_room(job: str, owner: str) -> str:
    return f"Makes room for {job} of {owner}."


@says(Happened.MAKES_ROOM_FOR_BOOKING)
def _makes_room_for_booking(booking: str) -> str:
    return f"Makes room for {booking}, as the calendar says."


@says(Happened.ALLOCATION_ENDS)
def _allocation_ends(booking: str) -> str:
    return f"Stops with a checkpoint before {booking}."


@says(Happened.GETS_ROOM)
def _gets_room(job: str, owner: str) -> str:
    return f"{job} of {owner} is stopped to make room."


@says(Happened.NEVER_FITS)
def _never_fits(wait: Json) -> str:
    return say_wait("impossible", wait, now_s=0.0)


@says(Happened.NEEDED_JOB_ENDED)
def _needed_job_ended(job: str, state: str) -> str:
    return f"Depends on {job}, which has {ended_as(state)}."


def ended_as(state: str) -> str:
    """A final state as a part of a sentence: "has timed out"."""
    return {"timed_out": "timed out", "cancelled": "been cancelled"}.get(state, state)


@says(Happened.FEWER_DEVICES)
def _fewer_devices(devices: int, asked: int, pool: str) -> str:
    return f"Takes {devices} of the {asked} devices that it asks for: pool {pool} has no more that work."


@says(Happened.ALL_DEVICES)
def _all_devices(asked: int, pool: str) -> str:
    return f"All {asked} devices that it asks for work again in pool {pool}."


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
    asked = f"{least} or more" if most == AS_MANY else f"{least} to {most}"
    source = "by the steps/s of earlier runs" if measured else "as a guess, because no run has shown it"
    said = f"Takes {words.plural(devices, 'device')}" + (f"; it allows {asked}." if most > least else ".")
    said += f" Each does {used_percent} % of what one alone would do, {source}."
    if wanted and failed:
        said += " Keeps this number while it runs: this code did not resume on another one."
    elif wanted and not elastic:
        said += " Keeps this number while it runs: the script has not been seen to resume on another one."
    return said


@says(Happened.RESIZED)
def _resized(
    before: int,
    after: int,
    end_before: str | None = None,
    end_after: str | None = None,
    steps_per_s: float | None = None,
) -> str:
    said = f"{before} -> {after} devices"
    if end_before is None or end_after is None:
        return f"{said}."
    was, now = (datetime.fromisoformat(text).astimezone(UTC) for text in (end_before, end_after))
    day = "" if was.date() == now.date() else "%Y-%m-%d "
    return f"{said}: was to end {was:{day}%H:%M}, now {now:{day}%H:%M} UTC."


@says(Happened.MOVES_APART)
def _moves_apart(slowed: str, beside: str, percent: int, most_percent: int) -> str:
    return (
        f"{slowed} is {percent} % slower beside {beside}, and the pool allows {most_percent} %: "
        "moves to a device that is idle."
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
        where = checkpoint if step is None else f"step {step:,}"
        return f"Attempt {attempt} runs, resumed from {where}."
    if not anew:
        return f"Attempt {attempt} runs."
    if not damaged:
        why = "no checkpoint was kept"
    elif damaged == 1:
        why = f"the only checkpoint that was kept is damaged ({damage})"
    else:
        why = f"{damaged} checkpoints were kept, and all are damaged (the newest: {damage})"
    return f"Attempt {attempt} runs from the beginning: {why}."


@says(Happened.SEEN_AGAIN)
def _seen_again() -> str:
    return "The supervisor answers again."


@says(Happened.SUPERVISOR_SILENT)
def _supervisor_silent(for_s: float) -> str:
    return (
        f"Its supervisor has given no sign of life for {for_s:.0f} s; "
        "its devices are kept until it answers or is gone."
    )


@says(Happened.PROCESS_UNDYING)
def _process_undying(pid: int | None = None, name: str = "") -> str:
    who = "a process that it left" if pid is None else f"process {pid} ({name})"
    return (
        f"It was killed, but {who} does not end: it waits in the kernel, mostly for a driver or a network disk. "
        "Its devices are kept until it is gone; if that does not come, restart the machine."
    )


@says(Happened.SERVER_STOPPED)
def _server_stopped() -> str:
    return "Berth was stopped; goes on at the next start."


@says(Happened.TIME_LIMIT_REACHED)
def _time_limit_reached(limit_s: float) -> str:
    return f"Reached its time limit of {limit_s:g} s."


@says(Happened.CLAIM_OUTGROWN)
def _claim_outgrown(rank: int, held_bytes: int, device: str, claimed_bytes: int) -> str:
    held, claimed = words.size(held_bytes), words.size(claimed_bytes)
    return f"Rank {rank} held {held} on {device}, more than the {claimed} it had claimed."


@says(Happened.GIVES_MEMORY_BACK)
def _gives_memory_back(
    held_bytes: int, claimed_bytes: int, device: str, job: str = "", owner: str = "", by: Sequence[str] = ()
) -> str:
    if job:
        who = f"{job} of {owner} needs"
    elif by:
        who = f"processes of {' and '.join(by)} took"
    else:
        who = "the jobs beside it need"
    held, claimed = words.size(held_bytes), words.size(claimed_bytes)
    return (
        f"Holds {held} on {device} and asked for {claimed}; gives way, because {who} the memory beyond that."
    )


@says(Happened.IDLE)
def _idle(idle_s: float, stop_after_s: float | None, session: bool = False) -> str:
    if session:
        then = (
            f" After {words.duration(stop_after_s)} of that it gives its devices back: files stay, variables in memory are lost."
            if stop_after_s
            else ""
        )
        return f"Has done nothing for {words.duration(idle_s)}.{then}"
    then = f" It is stopped after {words.duration(stop_after_s)} of that." if stop_after_s else ""
    return f"Holds its devices and has not used them for {words.duration(idle_s)}.{then}"


@says(Happened.IDLE_STOPPED)
def _idle_stopped(idle_s: float, pool: str) -> str:
    return f"Its devices did nothing for {words.duration(idle_s)}; pool {pool} stops such jobs."


@says(Happened.SESSION_ASLEEP)
def _session_asleep(idle_s: float, pool: str, kept_s: float | None) -> str:
    kept = f"kept for {words.duration(kept_s)}" if kept_s else "kept"
    return (
        f"Did nothing for {words.duration(idle_s)} and gave its devices back, as pool {pool} asks. Its files are {kept}; "
        "wake it to go on."
    )


@says(Happened.SESSION_EXPIRED)
def _session_expired(asleep_s: float, pool: str) -> str:
    return f"Was asleep for {words.duration(asleep_s)}; pool {pool} ends such sessions."


@says(Happened.DEVICE_FAULTY)
def _device_faulty(device: str, error: str) -> str:
    return f"{device} is faulty: {error}"


@says(Happened.DEVICE_ERROR)
def _device_error(device: str, xid: int, meaning: str) -> str:
    return f"{device} reported {meaning}"


@says(Happened.DEVICE_DRAINED)
def _device_drained(device: str, by: str, reason: str, until_s: float | None) -> str:
    why = f": {reason}" if reason else ""
    end = (
        ""
        if until_s is None
        else f" It is out of use until {datetime.fromtimestamp(until_s, UTC):%Y-%m-%d %H:%M} UTC."
    )
    return f"{by} takes {device} out of use{why}. This job goes on; nothing new starts there.{end}"


@says(Happened.SLOWED_DOWN)
def _slowed_down(device: str, by: str, ranks: int) -> str:
    others = "; all ranks wait for the slowest" if ranks > 1 else ""
    return f"{device} is slowed down by {by}{others}."


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
    when = "now" if delay_s == 0 else f"in {delay_s:.0f} s"
    if not_resumable:
        when += " without giving the trainer its checkpoint, on which it failed"
    if back_to is not None:
        when += (
            f" on {words.plural(back_to, 'device')}, where it ran before: it did not resume on another number"
        )
    if claim_bytes is not None:
        when += f" with {words.size(claim_bytes)} on each device"
    if lighter is not None:
        when += f" with less memory: {lighter}"
    return f"{say_json(ending)} Retry {failure} of {retries} {when}.{_kept(kept_devices, kept_until)}"


def _kept(devices: Sequence[str], until: str | None) -> str:
    if until is None:
        return ""
    named = words.listed(list(devices))
    verb = "is" if len(devices) == 1 else "are"
    at = datetime.fromisoformat(until).astimezone(UTC)
    return f" {named[:1].upper()}{named[1:]} {verb} kept for it until {at:%H:%M:%S} UTC."


@says(Happened.LAUNCHED_AGAIN)
def _launched_again(ending: Json) -> str:
    return f"{say_json(ending)} Trying again."


@says(Happened.WAITS_FOR_DISK)
def _waits_for_disk(ending: Json, delay_s: float) -> str:
    return f"{say_json(ending)} Trying again in {delay_s:.0f} s, and until there is room."


@says(Happened.GIVEN_UP)
def _given_up(ending: Json, same_again: bool = False, retries_used: int = 0) -> str:
    why = ""
    if same_again:
        why = "Not retried: the same code would fail again."
    elif retries_used:
        why = "The only retry is used." if retries_used == 1 else f"All {retries_used} retries are used."
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
    stopped = say_json(ending) if job is None else f"Made room for {job} of {owner}."
    if checkpoint is None:
        return f"{stopped} It kept no checkpoint, so it will restart from the beginning."
    if step is None:
        return f"{stopped} It will go on from {checkpoint}."
    of = f" of {total_steps:,}" if total_steps else ""
    return f"{stopped} It will go on from step {step:,}{of}."


@says(Happened.QUEUED_BY_DOCTOR)
def _queued_by_doctor() -> str:
    return "Its last attempt is gone; doctor queued it again."
