"""Optuna's samplers by ask and tell: the study is rebuilt from the history each time, so there is no second store."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.sweeps.core.history import History, Search, TrialState
from orchestrator.sweeps.core.space import Setting, Settings, Space, Value

OPTUNA_SAMPLERS = ("tpe", "gp", "cmaes")
WORST_MARGIN = 1.0  # a trial without a value counts as this much worse than the worst


def sampler_of(name: str) -> Callable[[Search, History, int], dict[str, Value]]:
    """A function that suggests settings with the sampler of this name."""

    def ask(search: Search, history: History, number: int) -> dict[str, Value]:
        import optuna  # late import: costs 300 ms, which only a worker that suggests has to pay

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = _MADE[name](optuna.samplers, search.seed * 1_000_003 + number)
            study = optuna.create_study(sampler=sampler)
            study.add_trials(list(_told(optuna, search.space, history)))
            return _asked(study.ask(), search.space)

    return ask


_MADE: Mapping[str, Callable[[Any, int], Any]] = {
    "tpe": lambda samplers, seed: samplers.TPESampler(
        seed=seed, multivariate=True, group=True, constant_liar=True
    ),
    "gp": lambda samplers, seed: samplers.GPSampler(seed=seed),
    "cmaes": lambda samplers, seed: samplers.CmaEsSampler(seed=seed),
}


def _told(optuna: Any, space: Space, history: History) -> Any:
    """The trials as Optuna knows them, by number: one that was stopped at a rung is pruned there."""
    values: dict[int, dict[int, float]] = {}
    for report in history.reports:
        values.setdefault(report.trial, {})[report.rung] = report.value
    finite = [report.value for report in history.reports if report.value < float("inf")]
    worst = max(finite, default=0.0) + WORST_MARGIN
    state = optuna.trial.TrialState
    for number, trial in sorted(history.trials.items()):
        seen = {rung: min(value, worst) for rung, value in values.get(number, {}).items()}
        last = seen[max(seen)] if seen else worst
        kind = {
            TrialState.ENDED: state.COMPLETE,
            TrialState.FAILED: state.COMPLETE,
            TrialState.RUNNING: state.RUNNING,
        }.get(trial.state, state.PRUNED)
        if kind == state.PRUNED and not seen:
            continue  # stopped before it reported: it says nothing
        yield optuna.trial.create_trial(
            state=kind,
            params=_params(space, trial.settings),
            distributions=_distributions(optuna, space, trial.settings),
            intermediate_values=seen,
            value=(worst if trial.state == TrialState.FAILED else last) if kind == state.COMPLETE else None,
        )


def _varying(space: Space, settings: Settings) -> list[Setting]:
    return [setting for setting in space.settings if setting.varies and setting.name in settings]


def _params(space: Space, settings: Settings) -> dict[str, Value]:
    return {setting.name: settings[setting.name] for setting in _varying(space, settings)}


def _distributions(optuna: Any, space: Space, settings: Settings) -> dict[str, Any]:
    return {
        setting.name: _distribution(optuna.distributions, setting) for setting in _varying(space, settings)
    }


def _distribution(kinds: Any, setting: Setting) -> Any:
    if setting.type == "float":
        return kinds.FloatDistribution(setting.low, setting.high, log=setting.log)
    if setting.type == "int":
        return kinds.IntDistribution(int(setting.low), int(setting.high), log=setting.log)
    return kinds.CategoricalDistribution(setting.choices)


def _asked(trial: Any, space: Space) -> dict[str, Value]:
    settings: dict[str, Value] = {}
    for setting in space.settings:
        if not setting.exists(settings):
            continue
        if not setting.varies:
            settings[setting.name] = setting.choices[0]
        elif setting.type == "float":
            settings[setting.name] = trial.suggest_float(
                setting.name, setting.low, setting.high, log=setting.log
            )
        elif setting.type == "int":
            low, high = int(setting.low), int(setting.high)
            settings[setting.name] = trial.suggest_int(setting.name, low, high, log=setting.log)
        else:
            settings[setting.name] = trial.suggest_categorical(setting.name, setting.choices)
    return settings
