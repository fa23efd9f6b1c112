"""Why jobs wait, in words; times count from the moment of reading, not of the pass."""

from collections.abc import Mapping, Sequence
from typing import Any

from berth import words
from orchestrator.sentences.table import Words

Facts = Mapping[str, Any]
NOT_SEEN = "scheduler"  # the code of a job that no pass has looked at yet
_WITHOUT_FACTS = frozenset({"", NOT_SEEN, "pool"})
_GIB = 2**30
_HOUR_S = 3600.0
_NOUNS = {
    "gpu": ("GPU", "GPUs"),
    "cpu": ("CPU slot", "CPU slots"),
    "sim": ("simulated GPU", "simulated GPUs"),
}
_LADDER = ((90, 1, "s"), (90 * 60, 60, "min"), (36 * 3600, 3600, "h"), (float("inf"), 86400, "days"))
_LACKS = {
    "progress": "reports no progress",
    "total": "its total number of steps is not known",
    "speed": "its speed is not known yet",
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
    bare = not facts and code not in _WITHOUT_FACTS
    why = f"Waits: {code.replace('_', ' ')}." if bare or words is None else words(facts, now_s)
    expected = f" Expected {when}." if when else _unknown(facts)
    return f"{_before(facts)}{why}{_in_front(facts, ahead)}{expected}"


def _before(facts: Facts) -> str:
    """What became of the devices that it had."""
    made_room, kept = facts.get("made_room"), facts.get("kept_for_retry")
    said = ""
    if made_room:
        step, total = made_room.get("step"), made_room.get("total_steps")
        of = f" of {total:,}" if total else ""
        said += f"Made room for {made_room['job']}{f' at step {step:,}{of}' if step else ''}. "
    if kept:
        names = _named(kept)
        said += f"{names[:1].upper()}{names[1:]} kept for its retry. "
    if why := facts.get("not_kept_for_retry"):
        said += f"Its devices are not kept for its retry: {_why_not_kept(why)}. "
    return said


def _why_not_kept(why: Facts) -> str:
    match why["state"]:
        case "not_in_pool":
            return "a device of its last attempt is no longer in its pool"
        case "booked":
            return f"{_named(why)} {_booked_for(why['booked_for'])}"
        case "outranked":
            return f"{why['by']} has a higher priority"
        case _:
            return _cause(why)


def _in_front(facts: Facts, ahead: int) -> str:
    """Who is served before it: the name of the first, and how many there are."""
    if not ahead or "first" not in facts:
        return ""
    return (
        f" {facts['first']} and {ahead - 1} more are ahead." if ahead > 1 else f" {facts['first']} is ahead."
    )


def _unknown(facts: Facts) -> str:
    if "unknown_end_of" not in facts:
        return ""
    return f" When is not known: {facts['unknown_end_of']} has no time limit and {_LACKS[facts['lacks']]}."


def _not_seen(facts: Facts, now_s: float) -> str:
    return "Waits for the scheduler."


def _devices(facts: Facts, now_s: float) -> str:
    """What is needed, what is free, and what is free but kept for others."""
    if "stopping" in facts:
        return _makes_room(facts)
    gpus, free = facts["gpus"], facts["free"]
    wanted = f"{gpus} {noun(facts['device_kinds'], gpus)}"
    state = "none is free" if free == 0 else f"{free} is free" if free == 1 else f"{free} are free"
    if "memory_bytes" in facts:
        wanted += f" with {gib(facts['memory_bytes'])} free" + (" on each" if gpus > 1 else "")
        state = "there is none" if free == 0 else f"there is {free}" if free == 1 else f"there are {free}"
    if servers := facts.get("servers"):
        wanted += f" on {servers} servers"
    elif free >= gpus:
        wanted, state = f"{wanted} on one server", f"{state}, on different servers"
    if booked := facts.get("booked"):
        state += f", {booked} more {_is(booked)} {_booked_for(facts['booked_for'])}"
    if kept := facts.get("kept"):
        state += f", {kept} {_is(kept)} kept for {facts['kept_for']}"
    return f"Waits for {wanted}{_with_data(facts)}; {state}."


def _with_data(facts: Facts) -> str:
    """Which servers have the data or the image of a job that may run on no others; empty where all have."""
    if facts.get("has_image"):
        return " on the first server, where its image is"
    nodes = facts.get("have_data")
    if not nodes:
        return ""
    names = ["the first server" if node == "local" else node for node in nodes]
    if not names[1:]:
        return f" on {names[0]}, where its data is"
    return f" where its data is ({', '.join(names[:-1])} and {names[-1]})"


def _makes_room(facts: Facts) -> str:
    """Jobs are being stopped for it, or it waits until the last of them has left its devices."""
    if not facts["stopping"]:
        return "Waits for its devices, which are being cleared for it."
    more = f" and {facts['stopping'] - 1} more" if facts["stopping"] > 1 else ""
    return f"Waits for {facts['stopped_job']}{more} to save a checkpoint and make room."


def _neighbours(facts: Facts, now_s: float) -> str:
    """Who would be slowed too much where there is memory."""
    if "stopping" in facts:
        return _makes_room(facts)
    wanted = f"{facts['gpus']} {noun(facts['device_kinds'], facts['gpus'])}"
    where = f"there is memory on {noun([facts['device_kind']], 1)} {facts['number']}"
    slower = f"{facts['percent']} % slower"
    if facts["itself"]:
        return f"Waits for {wanted}: {where}, but beside {facts['beside']} it would be {slower}."
    return f"Waits for {wanted}: {where}, but {facts['slowed']} would be {slower} beside it."


def _held(facts: Facts, now_s: float) -> str:
    if "kept_for" not in facts:
        return _devices(facts, now_s)
    free = facts["free"]
    wanted = f"{facts['gpus']} {noun(facts['device_kinds'], facts['gpus'])}"
    return f"Waits for {wanted}; {free} {_is(free)} free but kept for {facts['kept_for']}."


def _reserved(facts: Facts, now_s: float) -> str:
    """What the calendar keeps from a job, from when until when, and what would help."""
    wanted = f"{facts['gpus']} {noun(facts['device_kinds'], facts['gpus'])}"
    sentence = f"Waits for {wanted}; {_named(facts)} {_booked_for(facts['booked_for'])}"
    begins_s = facts.get("from_s")
    if begins_s is not None and begins_s > now_s:
        help_ = "shorter time limit" if facts["has_time_limit"] else "time limit that ends before"
        return f"{sentence} in {lasting(begins_s - now_s)}; a {help_} would let it start."
    until_s = facts.get("until_s")
    return f"{sentence}{'' if until_s is None else f' for another {lasting(until_s - now_s)}'}."


def _unavailable(facts: Facts, now_s: float) -> str:
    """Why too few devices could be used even if no job of ours ran."""
    wanted = f"{facts['gpus']} {noun(facts['device_kinds'], facts['gpus'])}"
    causes = "; ".join(map(_cause, facts["causes"])) + ("; ..." if facts["more_causes"] else "")
    return f"Waits for {wanted}{_with_data(facts)}; {facts['usable']} of {facts['fitting']} can be used now ({causes})."


def _impossible(facts: Facts, now_s: float) -> str:
    """Why the pool can never fit a job."""
    gpus, pool = facts["gpus"], facts["pool"]
    if facts.get("needs_this_server"):
        return (
            f"Needs data, packages, a Python or a socket of this server, but the devices of pool {pool} are lent. "
            "Choose another pool."
        )
    wanted = f"{gpus} {noun(facts['device_kinds'], gpus)}"
    if "most_bytes" in facts:
        largest = "the largest has" if gpus == 1 else "so many have only"
        return (
            f"Needs {gib(facts['memory_bytes'])} on {wanted}, but in pool {pool} "
            f"{largest} {gib(facts['most_bytes'])}. Ask for less memory or choose another pool."
        )
    help_ = "Ask for fewer or choose another pool."
    if facts["devices"] >= gpus:
        return f"Needs {wanted} on one server, but no server of pool {pool} has so many. {help_}"
    which = " that this job allows" if facts["others"] else ""
    return f"Needs {wanted}{_with_data(facts)}, but pool {pool} has {facts['devices']}{which}. {help_}"


def _depends(facts: Facts, now_s: float) -> str:
    """What has to succeed, and what has only to end."""
    groups = (
        (facts["to_succeed"], facts["succeed"], "succeed"),
        (facts["to_end"], facts["end"], "end"),
    )
    parts = [f"{_listed(count, names)} to {verb}" for count, names, verb in groups if count]
    return f"Waits for {' and for '.join(parts)}."


def _listed(count: int, names: Sequence[str]) -> str:
    if count == 1:
        return names[0]
    return f"{count} jobs ({', '.join(names)}{', ...' if count > len(names) else ''})"


def _not_before(facts: Facts, now_s: float) -> str:
    return (
        f"Starts in {lasting(max(0.0, (facts['not_before_s'] or now_s) - now_s))} at the earliest, as asked."
    )


def _environment(facts: Facts, now_s: float) -> str:
    """What is being installed, and for how long; or when it is tried again."""
    if facts.get("image"):
        return _image(facts, now_s)
    count = facts.get("packages")
    what = f"{count:,} package{'' if count == 1 else 's'}" if count else f"the packages of {facts['origin']}"
    if "next_try_s" in facts:
        wait_s = max(0.0, facts["next_try_s"] - now_s)
        return f"Waits for {what}: the package index could not be reached; next try in {lasting(wait_s)}."
    if "since_s" not in facts:
        return f"Waits for {what}."
    return f"Preparing {what}, {lasting(max(0.0, now_s - facts['since_s']))}."


def _image(facts: Facts, now_s: float) -> str:
    """Which image is being fetched, and for how long; or when it is tried again."""
    image = facts["origin"]
    if "next_try_s" in facts:
        wait_s = max(0.0, facts["next_try_s"] - now_s)
        return f"Waits for the image {image}, which could not be reached; next try in {lasting(wait_s)}."
    if "since_s" not in facts:
        return f"Waits for the image {image}."
    return f"Fetching the image {image}, {lasting(max(0.0, now_s - facts['since_s']))}."


def _data(facts: Facts, now_s: float) -> str:
    """How much of the data is here; or when it is tried again."""
    address = facts["address"]
    if "next_try_s" in facts:
        wait_s = max(0.0, facts["next_try_s"] - now_s)
        return f"Waits for {address}, which could not be reached; next try in {lasting(wait_s)}."
    if "began" not in facts:
        return f"Waits for {address}."
    done, total = words.size(facts["done_bytes"]), facts.get("total_bytes")
    if total is None:
        return f"Fetching {address}: {done} so far." if facts["done_bytes"] else f"Fetching {address}."
    return f"Fetching {done} of {words.size(total)} from {address}."


def _code(facts: Facts, now_s: float) -> str:
    """Which code is being fetched, and for how long; or when it is tried again."""
    what = f"{facts['ref']} of {facts['url']}" if facts["ref"] else facts["url"]
    if "next_try_s" in facts:
        wait_s = max(0.0, facts["next_try_s"] - now_s)
        return f"Waits for the code, {what}: the host could not be reached; next try in {lasting(wait_s)}."
    if "since_s" not in facts:
        return f"Waits for the code, {what}."
    return f"Fetching the code, {what}, {lasting(max(0.0, now_s - facts['since_s']))}."


def _quota(facts: Facts, now_s: float) -> str:
    """The owner's limit that holds a job back."""
    limit = f"Limit of {facts['owner']}" + (f" in pool {facts['pool']}" if "pool" in facts else "")
    if "most_jobs" in facts:
        return f"{limit}: {facts['jobs']} of {facts['most_jobs']} jobs run."
    if "most_devices" in facts:
        things = noun(facts["device_kinds"], 2)
        used = f"{facts['devices']} of {facts['most_devices']} {things} in use"
        return f"{limit}: {used}; this job needs {facts['gpus']}."
    hours, most = facts["week_gpu_s"] / _HOUR_S, facts["most_week_gpu_s"] / _HOUR_S
    return f"{limit}: {hours:.1f} of {most:g} GPU-hours used in the last 7 days."


def _array(facts: Facts, now_s: float) -> str:
    return f"Waits for its array: {facts['running']} of at most {facts['at_most']} of its jobs run."


def _no_devices(facts: Facts, now_s: float) -> str:
    return f"Pool {facts['pool']} has no devices now; an administrator can add some."


def _lent(facts: Facts, now_s: float) -> str:
    """What another system was asked for, in its own words where it refuses."""
    system = facts["system"]
    if "needs_s" in facts:
        return (
            f"Needs {lasting(facts['needs_s'])}, but jobs can use an allocation of {system} for {lasting(facts['longest_s'])}. "
            "Give it a shorter time limit, or make it preemptible if it continues from checkpoints."
        )
    if "problem" in facts:
        return f"Waits for {system}, which refuses an allocation: {facts['problem']}"
    if facts.get("most") == 0:
        return f"Waits for {system}, which an administrator has told to lend this pool nothing."
    if "most" in facts:
        return f"Waits for {system}: all {facts['most']} allocations of the pool are in use or coming."
    if not facts["waiting"]:
        return f"Waits for {system}, which is asked for an allocation."
    reason = f" ({facts['reason']})" if facts.get("reason") else ""
    expected_s = facts.get("expected_s")
    when = "" if expected_s is None or expected_s <= now_s else f", expected in {lasting(expected_s - now_s)}"
    return f"Waits for an allocation of {system}{reason}{when}."


def _pool(facts: Facts, now_s: float) -> str:
    if "driver" in facts:
        return f"Waits for the driver: {facts['driver']}"
    return "Waits for readings of the GPUs; there are none now (does the agent run?)."


def _plan(facts: Facts, now_s: float) -> str:
    return "Waits until Berth has planned how much memory it needs; a minute at most."


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
    "lent": _lent,
    "pool": _pool,
    "depends": _depends,
    "not_before": _not_before,
    "code": _code,
    "environment": _environment,
    "data": _data,
    "plan": _plan,
    "quota": _quota,
    "array": _array,
    "impossible": _impossible,
}


def noun(kinds: Sequence[str], count: int) -> str:
    """The word for devices of these kinds: a mixed or empty pool has plain devices."""
    plain = ("device", "devices")
    one, many = _NOUNS.get(kinds[0], plain) if len(kinds) == 1 else plain
    return one if count == 1 else many


def lasting(seconds: float) -> str:
    """A duration in the largest unit that still says something: "50 s", "6 min", "3 h"."""
    unit, word = next((unit, word) for limit, unit, word in _LADDER if seconds < limit)
    return f"{max(1, round(seconds / unit))} {word}"


def gib(memory_bytes: int) -> str:
    return f"{memory_bytes / _GIB:.3g} GiB"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _named(facts: Facts) -> str:
    """Some devices as the subject of a sentence, with its verb: "GPUs 0, 1 are"."""
    count, numbers = facts["devices"], ", ".join(map(str, facts["numbers"]))
    more = ", ..." if count > len(facts["numbers"]) else ""
    return f"{noun(facts['device_kinds'], count)} {numbers}{more} {_is(count)}"


def _booked_for(facts: Facts) -> str:
    """For whom the calendar keeps devices: the names of the bookings."""
    names = facts["names"]
    if facts["bookings"] == 1:
        return f"{'out' if facts['maintenance'] else 'reserved'} for {names[0]}"
    more = ", ..." if facts["bookings"] > len(names) else ""
    return f"kept for {', '.join(names[:-1])}{more} and {names[-1]}"


def _cause(facts: Facts) -> str:
    """Why a device cannot be used."""
    name = f"{noun([facts['device_kind']], 1)} {facts['number']}"
    match facts["state"]:
        case "fenced":
            return f"{name} is fenced until its last job is proven dead"
        case "silent":
            return f"{name} is on a server that does not answer"
        case "residue":
            return f"{name} still holds {gib(facts['held_bytes'])} of a job that has ended"
        case "foreign":
            return f"{name} is in use outside Berth, {gib(facts['held_bytes'])}"
        case "sliced":
            return f"{name} is cut into slices"
        case state:
            return f"{name} is {state}"
