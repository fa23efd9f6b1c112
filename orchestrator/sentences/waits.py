"""Why jobs wait, in words; times count from the moment of reading, not of the pass."""

from collections.abc import Iterable, Sequence

from berth.shared.language import plural_text, text
from orchestrator.sentences.nouns import (
    Facts,
    booked_for,
    devices_are,
    gib,
    joined,
    lasting,
    noun,
    unusable,
)
from orchestrator.sentences.preparations import (
    say_code,
    say_data,
    say_environment,
    say_lent,
    say_plan,
    say_pool,
)
from orchestrator.sentences.table import Words

NOT_SEEN = "scheduler"  # the code of a job that no pass has looked at yet
_WITHOUT_FACTS = frozenset({"", NOT_SEEN, "pool"})
_HOUR_S = 3600.0
_LACKS = {
    "progress": " When is not known: {job} has no time limit and reports no progress.",
    "total": " When is not known: {job} has no time limit and its total number of steps is not known.",
    "speed": " When is not known: {job} has no time limit and its speed is not known yet.",
}


def say_wait(code: str, facts: Facts, *, now_s: float, ahead: int = 0, when: str = "") -> str:
    """Why a job waits.

    Args:
        now_s: seconds since 1970, as the times among the facts.
        ahead: jobs in front of it in its line.
        when: it is expected to start, as "in 6 to 9 min"; empty where that is not known, or told beside it.
    """
    if "sentence" in facts:  # as an earlier version wrote it; the next pass replaces it
        return str(facts["sentence"])
    words = WAITS.get(code)
    if words is None or (not facts and code not in _WITHOUT_FACTS):
        why = text("Waits: {reason}.", reason=code.replace("_", " "))
    else:
        why = words(facts, now_s)
    expected = text(" Expected {when}.", when=when) if when else _unknown(facts)
    return f"{_before(facts)}{why}{_in_front(facts, ahead)}{expected}"


def _before(facts: Facts) -> str:
    """What became of the devices that it had."""
    said = ""
    if made_room := facts.get("made_room"):
        said += _made_room(made_room["job"], made_room.get("step"), made_room.get("total_steps"))
    if kept := facts.get("kept_for_retry"):
        names = devices_are(kept)
        said += text("{devices_are} kept for its retry. ", devices_are=f"{names[:1].upper()}{names[1:]}")
    if why := facts.get("not_kept_for_retry"):
        said += text("Its devices are not kept for its retry: {why}. ", why=_why_not_kept(why))
    return said


def _made_room(job: str, step: int | None, total: int | None) -> str:
    if not step:
        return text("Made room for {job}. ", job=job)
    if not total:
        return text("Made room for {job} at step {step:,}. ", job=job, step=step)
    return text("Made room for {job} at step {step:,} of {total:,}. ", job=job, step=step, total=total)


def _why_not_kept(why: Facts) -> str:
    match why["state"]:
        case "not_in_pool":
            return text("a device of its last attempt is no longer in its pool")
        case "booked":
            return f"{devices_are(why)} {booked_for(why['booked_for'])}"
        case "outranked":
            return text("{job} has a higher priority", job=why["by"])
        case _:
            return unusable(why)


def _in_front(facts: Facts, ahead: int) -> str:
    """Who is served before it: the name of the first, and how many there are."""
    if not ahead or "first" not in facts:
        return ""
    if ahead == 1:
        return text(" {job} is ahead.", job=facts["first"])
    return text(" {job} and {more} more are ahead.", job=facts["first"], more=ahead - 1)


def _unknown(facts: Facts) -> str:
    return text(_LACKS[facts["lacks"]], job=facts["unknown_end_of"]) if "unknown_end_of" in facts else ""


def _not_seen(facts: Facts, now_s: float) -> str:
    return text("Waits for the scheduler.")


def _devices(facts: Facts, now_s: float) -> str:
    """What is needed, what is free, and what is free but kept for others."""
    if "stopping" in facts:
        return _makes_room(facts)
    gpus, free = facts["gpus"], facts["free"]
    wanted = _wanted(facts)
    state = _so_many_are_free(free)
    if "memory_bytes" in facts:
        wanted = _with_memory(wanted, gpus, gib(facts["memory_bytes"]))
        state = (
            text("there is none") if free == 0 else plural_text("there is {count}", "there are {count}", free)
        )
    if servers := facts.get("servers"):
        wanted = text("{devices} on {servers} servers", devices=wanted, servers=servers)
    elif free >= gpus:
        wanted = text("{devices} on one server", devices=wanted)
        state = text("{so_many}, on different servers", so_many=state)
    if booked := facts.get("booked"):
        whom = booked_for(facts["booked_for"])
        state += plural_text(", {count} more is {booked}", ", {count} more are {booked}", booked, booked=whom)
    if kept := facts.get("kept"):
        whom = facts["kept_for"]
        state += plural_text(", {count} is kept for {whom}", ", {count} are kept for {whom}", kept, whom=whom)
    return text("Waits for {devices}; {state}.", devices=wanted + _with_data(facts), state=state)


def _wanted(facts: Facts) -> str:
    return f"{facts['gpus']} {noun(facts['device_kinds'], facts['gpus'])}"


def _so_many_are_free(free: int) -> str:
    return text("none is free") if free == 0 else plural_text("{count} is free", "{count} are free", free)


def _with_memory(devices: str, count: int, memory: str) -> str:
    return plural_text(
        "{devices} with {memory} free",
        "{devices} with {memory} free on each",
        count,
        devices=devices,
        memory=memory,
    )


def _with_data(facts: Facts) -> str:
    """Which servers have the data or the image of a job that may run on no others; empty where all have."""
    if facts.get("has_image"):
        return text(" on the first server, where its image is")
    if facts.get("have_packages"):
        return text(" where its packages are ready ({servers})", servers=_servers(facts["have_packages"]))
    nodes = facts.get("have_data")
    if not nodes:
        return ""
    if len(nodes) == 1:
        return text(" on {server}, where its data is", server=_servers(nodes))
    return text(" where its data is ({servers})", servers=_servers(nodes))


def _servers(nodes: Iterable[str]) -> str:
    return joined([text("the first server") if node == "local" else node for node in nodes])


def _makes_room(facts: Facts) -> str:
    """Jobs are being stopped for it, or it waits until the last of them has left its devices."""
    if not facts["stopping"]:
        return text("Waits for its devices, which are being cleared for it.")
    job, more = facts["stopped_job"], facts["stopping"] - 1
    if not more:
        return text("Waits for {job} to save a checkpoint and make room.", job=job)
    return text("Waits for {job} and {more} more to save a checkpoint and make room.", job=job, more=more)


def _neighbours(facts: Facts, now_s: float) -> str:
    """Who would be slowed too much where there is memory."""
    if "stopping" in facts:
        return _makes_room(facts)
    device = f"{noun([facts['device_kind']], 1)} {facts['number']}"
    known = {"devices": _wanted(facts), "device": device, "percent": facts["percent"]}
    if facts["itself"]:
        return text(
            "Waits for {devices}: there is memory on {device}, but beside {job} it would be {percent} % slower.",
            job=facts["beside"],
            **known,
        )
    return text(
        "Waits for {devices}: there is memory on {device}, but {job} would be {percent} % slower beside it.",
        job=facts["slowed"],
        **known,
    )


def _held(facts: Facts, now_s: float) -> str:
    if "kept_for" not in facts:
        return _devices(facts, now_s)
    return plural_text(
        "Waits for {devices}; {count} is free but kept for {whom}.",
        "Waits for {devices}; {count} are free but kept for {whom}.",
        facts["free"],
        devices=_wanted(facts),
        whom=facts["kept_for"],
    )


def _reserved(facts: Facts, now_s: float) -> str:
    """What the calendar keeps from a job, from when until when, and what would help."""
    known = {"devices": _wanted(facts), "booked": f"{devices_are(facts)} {booked_for(facts['booked_for'])}"}
    begins_s, until_s = facts.get("from_s"), facts.get("until_s")
    if begins_s is not None and begins_s > now_s:
        known["wait"] = lasting(begins_s - now_s)
        if facts["has_time_limit"]:
            return text(
                "Waits for {devices}; {booked} in {wait}; a shorter time limit would let it start.", **known
            )
        return text(
            "Waits for {devices}; {booked} in {wait}; a time limit that ends before would let it start.",
            **known,
        )
    if until_s is None:
        return text("Waits for {devices}; {state}.", devices=known["devices"], state=known["booked"])
    return text("Waits for {devices}; {booked} for another {wait}.", wait=lasting(until_s - now_s), **known)


def _unavailable(facts: Facts, now_s: float) -> str:
    """Why too few devices could be used even if no job of ours ran."""
    if facts.get("have_packages") and not facts["causes"]:
        return text(
            "Waits for its packages on another server with {devices}; they are ready on {servers}.",
            devices=_wanted(facts),
            servers=_servers(facts["have_packages"]),
        )
    return text(
        "Waits for {devices}; {usable} of {fitting} can be used now ({causes}).",
        devices=_wanted(facts) + _with_data(facts),
        usable=facts["usable"],
        fitting=facts["fitting"],
        causes="; ".join(map(unusable, facts["causes"])) + ("; ..." if facts["more_causes"] else ""),
    )


def _impossible(facts: Facts, now_s: float) -> str:
    """Why the pool can never fit a job."""
    gpus, pool = facts["gpus"], facts["pool"]
    if facts.get("needs_this_server"):
        return text(
            "Needs data, packages, a Python or a socket of this server, but the devices of pool {pool} are lent. "
            "Choose another pool.",
            pool=pool,
        )
    wanted = _wanted(facts)
    if "most_bytes" in facts:
        return plural_text(
            "Needs {memory} on {devices}, but in pool {pool} the largest has {most}. "
            "Ask for less memory or choose another pool.",
            "Needs {memory} on {devices}, but in pool {pool} so many have only {most}. "
            "Ask for less memory or choose another pool.",
            gpus,
            memory=gib(facts["memory_bytes"]),
            devices=wanted,
            pool=pool,
            most=gib(facts["most_bytes"]),
        )
    if facts["devices"] >= gpus:
        return text(
            "Needs {devices} on one server, but no server of pool {pool} has so many. "
            "Ask for fewer or choose another pool.",
            devices=wanted,
            pool=pool,
        )
    known = {"devices": wanted + _with_data(facts), "pool": pool, "there": facts["devices"]}
    if facts["others"]:
        return text(
            "Needs {devices}, but pool {pool} has {there} that this job allows. Ask for fewer or choose another pool.",
            **known,
        )
    return text(
        "Needs {devices}, but pool {pool} has {there}. Ask for fewer or choose another pool.", **known
    )


def _depends(facts: Facts, now_s: float) -> str:
    """What has to succeed, and what has only to end."""
    to_succeed = _listed(facts["to_succeed"], facts["succeed"]) if facts["to_succeed"] else ""
    to_end = _listed(facts["to_end"], facts["end"]) if facts["to_end"] else ""
    if to_succeed and to_end:
        return text("Waits for {jobs} to succeed and for {others} to end.", jobs=to_succeed, others=to_end)
    if to_succeed:
        return text("Waits for {jobs} to succeed.", jobs=to_succeed)
    return text("Waits for {jobs} to end.", jobs=to_end)


def _listed(count: int, names: Sequence[str]) -> str:
    if count == 1:
        return names[0]
    dots = ", ..." if count > len(names) else ""
    return text("{count} jobs ({names})", count=count, names=", ".join(names) + dots)


def _not_before(facts: Facts, now_s: float) -> str:
    wait = lasting(max(0.0, (facts["not_before_s"] or now_s) - now_s))
    return text("Starts in {wait} at the earliest, as asked.", wait=wait)


def _quota(facts: Facts, now_s: float) -> str:
    """The owner's limit that holds a job back."""
    limit = (
        text("Limit of {owner} in pool {pool}", owner=facts["owner"], pool=facts["pool"])
        if "pool" in facts
        else text("Limit of {owner}", owner=facts["owner"])
    )
    if "most_jobs" in facts:
        return text(
            "{limit}: {jobs} of {most} jobs run.", limit=limit, jobs=facts["jobs"], most=facts["most_jobs"]
        )
    if "most_devices" in facts:
        return text(
            "{limit}: {used} of {most} {things} in use; this job needs {gpus}.",
            limit=limit,
            used=facts["devices"],
            most=facts["most_devices"],
            things=noun(facts["device_kinds"], 2),
            gpus=facts["gpus"],
        )
    return text(
        "{limit}: {hours:.1f} of {most:g} GPU-hours used in the last 7 days.",
        limit=limit,
        hours=facts["week_gpu_s"] / _HOUR_S,
        most=facts["most_week_gpu_s"] / _HOUR_S,
    )


def _array(facts: Facts, now_s: float) -> str:
    return text(
        "Waits for its array: {running} of at most {most} of its jobs run.",
        running=facts["running"],
        most=facts["at_most"],
    )


def _no_devices(facts: Facts, now_s: float) -> str:
    return text("Pool {pool} has no devices now; an administrator can add some.", pool=facts["pool"])


WAITS: dict[str, Words] = {
    "": _not_seen,
    NOT_SEEN: _not_seen,
    "devices": _devices,
    "memory": _devices,
    "neighbours": _neighbours,
    "held": _held,
    "reserved": _reserved,
    "unavailable": _unavailable,
    "no_devices": _no_devices,
    "lent": say_lent,
    "pool": say_pool,
    "depends": _depends,
    "not_before": _not_before,
    "code": say_code,
    "environment": say_environment,
    "data": say_data,
    "plan": say_plan,
    "quota": _quota,
    "array": _array,
    "impossible": _impossible,
}
