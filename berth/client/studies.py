"""Sweeps as studies of Optuna, for its plots and tools in a notebook; nothing is written back."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]


def study_of(sweep: Json, trials: Sequence[Json]) -> Any:
    """An ``optuna.Study`` in memory with the settings, values and states of these trials.

    A trial that failed is FAIL, one that was paused or stopped is PRUNED with its values at the rungs. Left out are those
    that run, and those that a fault of the machine ended.

    Raises:
        ImportError: Optuna is not installed here.
    """
    import optuna

    directions = [metric["direction"] for metric in sweep["metrics"]]
    study = optuna.create_study(study_name=f"{sweep['name']} #{sweep['short_id']}", directions=directions)
    known = [trial for trial in trials if not trial["lost"] and trial["state"] != "running"]
    study.add_trials([_frozen(optuna, sweep, trial) for trial in known])
    return study


def _frozen(optuna: Any, sweep: Json, trial: Json) -> Any:
    states = optuna.trial.TrialState
    values = [trial["values"].get(metric["name"]) for metric in sweep["metrics"]]
    state = {"ended": states.COMPLETE, "failed": states.FAIL}.get(trial["state"], states.PRUNED)
    if state == states.COMPLETE and None in values:
        state = states.FAIL
    return optuna.trial.create_trial(
        state=state,
        params=trial["settings"],
        distributions={name: _distribution(optuna, sweep["space"][name]) for name in trial["settings"]},
        intermediate_values=dict(_steps(trial)) if len(values) == 1 else {},
        values=values if state == states.COMPLETE else None,
        user_attrs={"berth_trial": trial["number"], "berth_job": trial["job"]},
    )


def _steps(trial: Json) -> Iterator[tuple[int, float]]:
    for report in trial["reports"]:
        if report["value"] is not None:
            yield report["rung"], report["value"]


def _distribution(optuna: Any, setting: Json) -> Any:
    kinds = optuna.distributions
    match setting["type"]:
        case "float":
            return kinds.FloatDistribution(setting["low"], setting["high"], log=setting.get("log", False))
        case "int":
            return kinds.IntDistribution(setting["low"], setting["high"], log=setting.get("log", False))
        case "bool":
            return kinds.CategoricalDistribution([False, True])
        case "fixed":
            return kinds.CategoricalDistribution([setting["value"]])
        case _:
            return kinds.CategoricalDistribution(setting["choices"])
