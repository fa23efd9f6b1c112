"""What the history of a job says where an attempt ended and the job goes on, or is given up."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from berth.shared import words
from berth.shared.language import plural_text, text
from orchestrator.facts.events import Happened
from orchestrator.sentences.table import say_json, says

Json = Mapping[str, Any]


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
