"""What a job waits for that is fetched or prepared for it: code, packages, an image, data, an allocation."""

from berth.shared import words
from berth.shared.language import plural_text, text
from orchestrator.sentences.nouns import Facts, lasting


def say_environment(facts: Facts, now_s: float) -> str:
    """What is being installed, and for how long; or when it is tried again."""
    if facts.get("image"):
        return _say_image(facts, now_s)
    count = facts.get("packages")
    what = (
        plural_text("{count:,} package", "{count:,} packages", count)
        if count
        else text("the packages of {origin}", origin=facts["origin"])
    )
    if "next_try_s" in facts:
        return text(
            "Waits for {what}: the package index could not be reached; next try in {wait}.",
            what=what,
            wait=_until(facts["next_try_s"], now_s),
        )
    if "since_s" not in facts:
        return text("Waits for {what}.", what=what)
    return text("Preparing {what}, {so_long}.", what=what, so_long=_since(facts["since_s"], now_s))


def _say_image(facts: Facts, now_s: float) -> str:
    """Which image is being fetched, and for how long; or when it is tried again."""
    image = facts["origin"]
    if "next_try_s" in facts:
        return text(
            "Waits for the image {image}, which could not be reached; next try in {wait}.",
            image=image,
            wait=_until(facts["next_try_s"], now_s),
        )
    if "since_s" not in facts:
        return text("Waits for the image {image}.", image=image)
    return text(
        "Fetching the image {image}, {so_long}.", image=image, so_long=_since(facts["since_s"], now_s)
    )


def say_data(facts: Facts, now_s: float) -> str:
    """How much of the data is here; or when it is tried again."""
    address = facts["address"]
    if "next_try_s" in facts:
        return text(
            "Waits for {address}, which could not be reached; next try in {wait}.",
            address=address,
            wait=_until(facts["next_try_s"], now_s),
        )
    if "began" not in facts:
        return text("Waits for {what}.", what=address)
    done, total = words.size(facts["done_bytes"]), facts.get("total_bytes")
    if total is not None:
        return text(
            "Fetching {done} of {total} from {address}.", done=done, total=words.size(total), address=address
        )
    if facts["done_bytes"]:
        return text("Fetching {address}: {done} so far.", address=address, done=done)
    return text("Fetching {address}.", address=address)


def say_code(facts: Facts, now_s: float) -> str:
    """Which code is being fetched, and for how long; or when it is tried again."""
    url = facts["url"]
    what = text("{ref} of {url}", ref=facts["ref"], url=url) if facts["ref"] else url
    if "next_try_s" in facts:
        return text(
            "Waits for the code, {what}: the host could not be reached; next try in {wait}.",
            what=what,
            wait=_until(facts["next_try_s"], now_s),
        )
    if "since_s" not in facts:
        return text("Waits for the code, {what}.", what=what)
    return text("Fetching the code, {what}, {so_long}.", what=what, so_long=_since(facts["since_s"], now_s))


def say_lent(facts: Facts, now_s: float) -> str:
    """What another system was asked for, in its own words where it refuses."""
    system = facts["system"]
    if "needs_s" in facts:
        return text(
            "Needs {needed}, but jobs can use an allocation of {system} for {longest}. "
            "Give it a shorter time limit, or make it preemptible if it continues from checkpoints.",
            needed=lasting(facts["needs_s"]),
            system=system,
            longest=lasting(facts["longest_s"]),
        )
    if "problem" in facts:
        refusal = facts["problem"]
        return text(
            "Waits for {system}, which refuses an allocation: {problem}", system=system, problem=refusal
        )
    if facts.get("most") == 0:
        return text(
            "Waits for {system}, which an administrator has told to lend this pool nothing.", system=system
        )
    if "most" in facts:
        return text(
            "Waits for {system}: all {most} allocations of the pool are in use or coming.",
            system=system,
            most=facts["most"],
        )
    if not facts["waiting"]:
        return text("Waits for {system}, which is asked for an allocation.", system=system)
    reason = f" ({facts['reason']})" if facts.get("reason") else ""
    expected_s = facts.get("expected_s")
    if expected_s is None or expected_s <= now_s:
        return text("Waits for an allocation of {system}{reason}.", system=system, reason=reason)
    return text(
        "Waits for an allocation of {system}{reason}, expected in {wait}.",
        system=system,
        reason=reason,
        wait=lasting(expected_s - now_s),
    )


def say_pool(facts: Facts, now_s: float) -> str:
    if "driver" in facts:
        return text("Waits for the driver: {message}", message=facts["driver"])
    return text("Waits for readings of the GPUs; there are none now (does the agent run?).")


def say_plan(facts: Facts, now_s: float) -> str:
    return text("Waits until Berth has planned how much memory it needs; a minute at most.")


def _until(at_s: float, now_s: float) -> str:
    return lasting(max(0.0, at_s - now_s))


def _since(began_s: float, now_s: float) -> str:
    return lasting(max(0.0, now_s - began_s))
