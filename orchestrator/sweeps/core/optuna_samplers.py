"""Optuna's samplers by ask and tell: the study is rebuilt from the history each time, so there is no second store."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.sweeps.core.history import History, Search, Trial, TrialState
from orchestrator.sweeps.core.space import Setting, Settings, Space, Value

OPTUNA_SAMPLERS = ("tpe", "gp", "cmaes", "nsga2")
FOR_ONE_METRIC = ("cmaes",)
POPULATION = 16  # of a generation of NSGA-II; sweeps have tens of trials, not thousands
WORST_MARGIN = 1.0  # a trial without a value counts as this much worse than the worst
SEEDS = 2**32  # that Optuna's samplers take, from 0


def sampler_of(name: str) -> Callable[[Search, History, int], dict[str, Value]]:
    """A function that suggests settings with the sampler of this name."""

    def ask(search: Search, history: History, number: int) -> dict[str, Value]:
        import optuna  # late import: costs 300 ms, which only a worker that suggests has to pay

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = _MADE[name](optuna.samplers, (search.seed * 1_000_003 + number) % SEEDS)
            study = optuna.create_study(sampler=sampler, directions=["minimize"] * search.metrics)
            study.add_trials(list(_told(optuna, search, history)))
            return _asked(study.ask(), search.space)

    return ask


_MADE: Mapping[str, Callable[[Any, int], Any]] = {
    "tpe": lambda samplers, seed: samplers.TPESampler(
        seed=seed, multivariate=True, group=True, constant_liar=True
    ),
    "gp": lambda samplers, seed: samplers.GPSampler(seed=seed),
    "cmaes": lambda samplers, seed: samplers.CmaEsSampler(seed=seed),
    "nsga2": lambda samplers, seed: samplers.NSGAIISampler(seed=seed, population_size=POPULATION),
}


def _told(optuna: Any, search: Search, history: History) -> Any:
    """The trials as Optuna knows them, by number: one that was stopped at a rung is pruned there."""
    costs: dict[int, dict[int, tuple[float, ...]]] = {}
    for report in history.reports:
        costs.setdefault(report.trial, {})[report.rung] = (report.value, *report.further)
    worst = _worst(costs, search.metrics)
    complete = 0
    for number, trial in sorted(history.trials.items()):
        seen = {
            rung: tuple(min(pair) for pair in zip(values, worst, strict=True))
            for rung, values in costs.get(number, {}).items()
        }
        kind = _kind(optuna.trial.TrialState, trial, search.metrics)
        if kind is None or (kind == optuna.trial.TrialState.PRUNED and not seen):
            continue  # stopped before it reported: it says nothing
        is_complete = kind == optuna.trial.TrialState.COMPLETE
        last = worst if trial.state == TrialState.FAILED or not seen else seen[max(seen)]
        yield optuna.trial.create_trial(
            state=kind,
            params=_params(search.space, trial.settings),
            distributions=_distributions(optuna, search.space, trial.settings),
            intermediate_values={rung: values[0] for rung, values in seen.items()}
            if search.metrics == 1
            else None,
            values=list(last) if is_complete else None,
            system_attrs=_generation(optuna, complete) if is_complete and search.sampler == "nsga2" else None,
        )
        complete += is_complete


def _worst(costs: Mapping[int, Mapping[int, tuple[float, ...]]], metrics: int) -> tuple[float, ...]:
    """A value for each metric that is worse than all that were reported, for trials without one."""
    rows = [values for reports in costs.values() for values in reports.values()]
    finite = ([row[place] for row in rows if row[place] < float("inf")] for place in range(metrics))
    return tuple(max(column, default=0.0) + WORST_MARGIN for column in finite)


def _kind(states: Any, trial: Trial, metrics: int) -> Any:
    """A trial's state in Optuna; None for one that was stopped, where several metrics leave pruning out."""
    known = {
        TrialState.ENDED: states.COMPLETE,
        TrialState.FAILED: states.COMPLETE,
        TrialState.RUNNING: states.RUNNING,
    }
    return known.get(trial.state, states.PRUNED if metrics == 1 else None)


def _generation(optuna: Any, complete: int) -> dict[str, int]:
    """The generation of a trial, which NSGA-II keeps beside it and a study that is rebuilt has to have."""
    return {optuna.samplers.NSGAIISampler._get_generation_key(): complete // POPULATION}


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
