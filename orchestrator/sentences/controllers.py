"""Why a sweep, a service or a federation is in its state, and why it paused or stopped a job of its own."""

from collections.abc import Sequence

from berth.shared import words
from berth.shared.language import text
from orchestrator.facts.events import FederationFact, ServiceFact, SweepFact
from orchestrator.sentences.events import ended_as
from orchestrator.sentences.table import says

MOST_NAMES = 10


@says(SweepFact.PAUSED_BY)
def _sweep_paused(by: str) -> str:
    return text(
        "Paused by {by}. Its trials stop at their next rung, and none begins until it is resumed.", by=by
    )


@says(SweepFact.STOPPED_BY)
def _sweep_stopped(by: str) -> str:
    return text("Stopped by {by}.", by=by)


@says(SweepFact.TRIALS_SPENT)
def _trials_spent(trials: int) -> str:
    return text("All {trials:,} trials of its budget have run.", trials=trials)


@says(SweepFact.DEVICE_TIME_SPENT)
def _sweep_device_time_spent(used_s: float, ended: int) -> str:
    spent = text("Its budget of device time is spent ({used_s}).", used_s=words.duration(used_s))
    return spent if ended else text("{spent} No trial ended within it; give it more.", spent=spent)


@says(SweepFact.SPACE_TRIED)
def _sweep_space_tried(points: int) -> str:
    return text("Every point of its space was tried ({points:,}).", points=points)


@says(SweepFact.LITTLE_TO_GAIN)
def _sweep_little_to_gain(gain: float, least: float, metric: str, more_s: float) -> str:
    return text(
        "Another {more} of device time is expected to improve {metric} by {gain}, less than {least}. "
        "It continues with a smaller least gain, or without one.",
        more=words.duration(more_s),
        metric=metric,
        gain=words.value(gain),
        least=words.value(least),
    )


@says(SweepFact.METRIC_MISSING)
def _sweep_metric_missing(metric: str, trial: int, names: Sequence[str]) -> str:
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
def _sweep_same_error(times: int, error: str) -> str:
    return text("{times} trials in a row failed with the same error: {error}", times=times, error=error)


@says(SweepFact.TRIALS_LOST)
def _sweep_trials_lost(times: int, error: str) -> str:
    return text(
        "The machine failed {times} trials in a row, the last one with: {error}", times=times, error=error
    )


@says(SweepFact.SAMPLER_FAILED)
def _sweep_sampler_failed(sampler: str, trial: int, problem: str) -> str:
    return text(
        "Trial {trial} waits: the sampler {sampler} could not choose its settings ({problem}). "
        "It is tried again; if that does not help, begin a sweep with another sampler.",
        trial=trial,
        sampler=sampler,
        problem=problem,
    )


@says(SweepFact.CANNOT_SUBMIT)
def _sweep_cannot_submit(problem: str) -> str:
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


@says(ServiceFact.STOPPED_BY)
def _service_stopped(by: str) -> str:
    return text("Stopped by {by}. It answers nothing until it is started again.", by=by)


@says(ServiceFact.DIES_AGAIN)
def _service_dies_again(times: int, error: str) -> str:
    return text(
        "{times} replicas in a row have failed, so no further one is begun until it is started "
        "again. The last one: {error}",
        times=times,
        error=error,
    )


@says(ServiceFact.CANNOT_SUBMIT)
def _service_cannot_submit(problem: str) -> str:
    return text("No replica can be submitted: {problem}", problem=problem)


@says(ServiceFact.UPDATE_FAILED)
def _service_update_failed(times: int, error: str) -> str:
    return text(
        "{times} replicas of its newest revision have failed; the one before goes on answering. "
        "The last one: {error}",
        times=times,
        error=error,
    )


@says(ServiceFact.REPLICA_IDLE)
def _replica_idle(idle_s: float) -> str:
    return text(
        "Its service had no request for {idle_s}; the next one starts it again.",
        idle_s=words.duration(idle_s),
    )


@says(ServiceFact.REPLICA_REPLACED)
def _replica_replaced() -> str:
    return text("A replica of a newer revision answers in its place.")


@says(ServiceFact.REPLICA_NOT_NEEDED)
def _replica_not_needed() -> str:
    return text("Its service was stopped, or needs fewer replicas.")


@says(FederationFact.STOPPED_BY)
def _federation_stopped(by: str) -> str:
    return text("Stopped by {by}, with all its jobs.", by=by)


@says(FederationFact.FAILED_AT_START)
def _federation_failed_at_start() -> str:
    return text("Stopped by an error at its start, with all its jobs.")


@says(FederationFact.SERVER_ENDED)
def _server_of_federation_ended(state: str, error: str) -> str:
    return text(
        "The job of its server has {state}. {error}", state=text(ended_as(state)), error=error
    ).strip()


@says(FederationFact.NOT_KEPT)
def _federation_not_kept(problem: str) -> str:
    return text("All rounds are done, but no model could be made of the result: {problem}", problem=problem)


@says(FederationFact.SITE_OVER)
def _site_over() -> str:
    return text("Its federation is over.")
