"""Why a sweep has ended, and why it paused or stopped a trial."""

from collections.abc import Sequence

from berth import words
from orchestrator.facts.events import SweepFact
from orchestrator.sentences.table import says

MOST_NAMES = 10


@says(SweepFact.PAUSED_BY)
def _paused(by: str) -> str:
    return f"Paused by {by}. Its trials stop at their next rung, and none begins until it is resumed."


@says(SweepFact.STOPPED_BY)
def _stopped(by: str) -> str:
    return f"Stopped by {by}."


@says(SweepFact.TRIALS_SPENT)
def _trials_spent(trials: int) -> str:
    return f"All {trials:,} trials of its budget have run."


@says(SweepFact.DEVICE_TIME_SPENT)
def _device_time_spent(used_s: float, ended: int) -> str:
    spent = f"Its budget of device time is spent ({words.duration(used_s)})."
    return spent if ended else f"{spent} No trial ended within it; give it more."


@says(SweepFact.SPACE_TRIED)
def _space_tried(points: int) -> str:
    return f"Every point of its space was tried ({points:,})."


@says(SweepFact.LITTLE_TO_GAIN)
def _little_to_gain(gain: float, least: float, metric: str, more_s: float) -> str:
    more, gain_text, least_text = words.duration(more_s), words.value(gain), words.value(least)
    expected = f"Another {more} of device time is expected to improve {metric} by {gain_text}"
    return f"{expected}, less than {least_text}. It continues with a smaller least gain, or without one."


@says(SweepFact.METRIC_MISSING)
def _metric_missing(metric: str, trial: int, names: Sequence[str]) -> str:
    came = ", ".join(names[:MOST_NAMES]) + (" and others" if len(names) > MOST_NAMES else "")
    reported = f"It reported {came}; choose one of these." if names else "It reported no metric at all."
    return f"Trial {trial} ended without the metric {metric!r}. {reported}"


@says(SweepFact.SAME_ERROR)
def _same_error(times: int, error: str) -> str:
    return f"{times} trials in a row failed with the same error: {error}"


@says(SweepFact.CANNOT_SUBMIT)
def _cannot_submit(problem: str) -> str:
    return f"No further trial can be submitted: {problem}"


@says(SweepFact.TRIAL_PAUSED)
def _trial_paused(rung: int) -> str:
    return f"Paused by its sweep at step {rung:,}: others lead there. It may be resumed later."


@says(SweepFact.TRIAL_STOPPED)
def _trial_stopped(rung: int) -> str:
    return f"Stopped by its sweep at step {rung:,}: others lead there."


@says(SweepFact.TRIAL_WAITS)
def _trial_waits() -> str:
    return "Its sweep is paused; it continues when the sweep is resumed."


@says(SweepFact.TRIAL_NOT_NEEDED)
def _trial_not_needed() -> str:
    return "Its sweep has ended."
