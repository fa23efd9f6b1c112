"""What came of a recipe of a model."""

from berth import words


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
        made = f"Made {result}" if result else "Made a model that is gone"
        return f"{made}; {metric} is {words.value(value)}." if metric and value is not None else f"{made}."
    if outcome == "gate_failed" and metric and value is not None and limit is not None:
        bound = "at least" if higher_is_better else "at most"
        return (
            f"The accuracy gate failed: {metric} is {words.value(value)} and has to be {bound} {words.value(limit)}. "
            "No model was made; a result stays among the checkpoints of the job."
        )
    if outcome == "job_ended" and error:
        return f"The job ended without a result. {error}"
    return {
        "": "",
        "measured": f"{metric} is {words.value(value)}." if metric and value is not None else "Measured.",
        "gate_failed": "The accuracy gate failed, so no model was made.",
        "not_kept": f"No model could be made of the result: {error}",
        "job_ended": "The job ended without a result; its log says why.",
    }[outcome]
