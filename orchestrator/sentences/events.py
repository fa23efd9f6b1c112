"""What the history of a job says, and why the job is in its state."""

from collections.abc import Mapping, Sequence
from typing import Any

from berth.shared import words
from berth.shared.language import text
from orchestrator.facts.events import Happened
from orchestrator.sentences.table import says
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
