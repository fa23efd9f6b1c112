"""Why a sweep has ended, and why it paused or stopped a trial."""

from collections.abc import Sequence

from berth import words
from berth.language import text
from orchestrator.facts.events import SweepFact
from orchestrator.sentences.table import says

MOST_NAMES = 10


@says(SweepFact.PAUSED_BY)
def _paused(by: str) -> str:
    return text(
        "Paused by {by}. Its trials stop at their next rung, and none begins until it is resumed.", by=by
    )


@says(SweepFact.STOPPED_BY)
def _stopped(by: str) -> str:
    return text("Stopped by {by}.", by=by)


@says(SweepFact.TRIALS_SPENT)
def _trials_spent(trials: int) -> str:
    return text("All {trials:,} trials of its budget have run.", trials=trials)


@says(SweepFact.DEVICE_TIME_SPENT)
def _device_time_spent(used_s: float, ended: int) -> str:
    spent = text("Its budget of device time is spent ({used_s}).", used_s=words.duration(used_s))
    return spent if ended else text("{spent} No trial ended within it; give it more.", spent=spent)


@says(SweepFact.SPACE_TRIED)
def _space_tried(points: int) -> str:
    return text("Every point of its space was tried ({points:,}).", points=points)


@says(SweepFact.LITTLE_TO_GAIN)
def _little_to_gain(gain: float, least: float, metric: str, more_s: float) -> str:
    return text(
        "Another {more} of device time is expected to improve {metric} by {gain}, less than {least}. "
        "It continues with a smaller least gain, or without one.",
        more=words.duration(more_s),
        metric=metric,
        gain=words.value(gain),
        least=words.value(least),
    )


@says(SweepFact.METRIC_MISSING)
def _metric_missing(metric: str, trial: int, names: Sequence[str]) -> str:
    came = ", ".join(names[:MOST_NAMES]) + (text(" and others") if len(names) > MOST_NAMES else "")
    reported = (
        text("It reported {came}; choose one of these.", came=came)
        if names
        else text("It reported no metric at all.")
    )
    return text(
        "Trial {trial} ended without the metric {metric!r}. {reported}",
        trial=trial,
        metric=metric,
        reported=reported,
    )


@says(SweepFact.SAME_ERROR)
def _same_error(times: int, error: str) -> str:
    return text("{times} trials in a row failed with the same error: {error}", times=times, error=error)


@says(SweepFact.CANNOT_SUBMIT)
def _cannot_submit(problem: str) -> str:
    return text("No further trial can be submitted: {problem}", problem=problem)


@says(SweepFact.TRIAL_PAUSED)
def _trial_paused(rung: int) -> str:
    return text(
        "Paused by its sweep at step {rung:,}: others lead there. It may be resumed later.", rung=rung
    )


@says(SweepFact.TRIAL_STOPPED)
def _trial_stopped(rung: int) -> str:
    return text("Stopped by its sweep at step {rung:,}: others lead there.", rung=rung)


@says(SweepFact.TRIAL_WAITS)
def _trial_waits() -> str:
    return text("Its sweep is paused; it continues when the sweep is resumed.")


@says(SweepFact.TRIAL_NOT_NEEDED)
def _trial_not_needed() -> str:
    return text("Its sweep has ended.")
