"""What came of a recipe of a model."""

from berth.shared import words
from berth.shared.language import text


def say_outcome(
    outcome: str,
    *,
    result: str | None,
    metric: str | None,
    value: float | None,
    limit: float | None,
    higher_is_better: bool,
    error: str,
) -> str:
    """The outcome of a recipe; empty while its job has not ended.

    Args:
        result: reference of the model that was made.
        metric, value, limit: of the accuracy gate, where the recipe has one.
    """
    if outcome == "made":
        made = text("Made {result}", result=result) if result else text("Made a model that is gone")
        if not metric or value is None:
            return f"{made}."
        return text("{made}; {metric} is {value}.", made=made, metric=metric, value=words.value(value))
    if outcome == "gate_failed" and metric and value is not None and limit is not None:
        template = (
            "The accuracy gate failed: {metric} is {value} and has to be at least {limit}. "
            "No model was made; a result stays among the checkpoints of the job."
            if higher_is_better
            else "The accuracy gate failed: {metric} is {value} and has to be at most {limit}. "
            "No model was made; a result stays among the checkpoints of the job."
        )
        return text(template, metric=metric, value=words.value(value), limit=words.value(limit))
    if outcome == "job_ended" and error:
        return text("The job ended without a result. {error}", error=error)
    return {
        "": "",
        "measured": text("{metric} is {value}.", metric=metric, value=words.value(value))
        if metric and value is not None
        else text("Measured."),
        "gate_failed": text("The accuracy gate failed, so no model was made."),
        "not_kept": text("No model could be made of the result: {error}", error=error),
        "job_ended": text("The job ended without a result; its log says why."),
    }[outcome]
