"""Suggestions: the settings of the next trial, from the seed, its number and the history alone."""

from collections.abc import Callable, Mapping

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from orchestrator.sweeps.core import optuna_samplers
from orchestrator.sweeps.core.history import History, Report, Search, TrialState
from orchestrator.sweeps.core.optuna_samplers import OPTUNA_SAMPLERS
from orchestrator.sweeps.core.pareto import as_one_metric
from orchestrator.sweeps.core.space import Settings, Value
from orchestrator.sweeps.core.surrogate import Floats, Points, Surrogate, expected_improvement, fit_kernel

SAMPLERS = ("auto", "random", "grid", *OPTUNA_SAMPLERS)
LEAST_START, MOST_START = 8, 16
MOST_FITTED, MOST_CONDITIONED = 150, 300
REFIT_RATIO = 1.25
CANDIDATES = 400  # from the whole space, and as many near the best
NEAR = 5
SPREADS = (0.05, 0.15)
SHARE_REDRAWN = 0.1
# With many trials the model is sure of itself: now and then a trial anywhere shows where it is wrong.
EXPLORED_FROM, EXPLORED_EVERY = 64, 5
TRIES = 64


def suggest(search: Search, history: History, number: int) -> dict[str, Value] | None:
    """The settings of trial ``number``; None when the space has no point that was not tried.

    A point whose trial was lost counts as not tried.
    """
    tried = {_key(trial.settings) for trial in history.trials.values() if not trial.lost}
    size = search.space.size()
    if size is not None and len(tried) >= size:
        return None
    if search.sampler == "grid":
        return next((point for point in search.space.grid() if _key(point) not in tried), None)
    settings = _SAMPLERS[search.sampler](search, _with_earlier(search, history), number)
    if size is None or _key(settings) not in tried:
        return settings
    return _untried(search, number, tried)


def _with_earlier(search: Search, history: History) -> History:
    """The history after that of earlier sweeps, whose trials have the numbers below 0."""
    if not search.earlier.trials:
        return history
    trials = {**search.earlier.trials, **history.trials}
    return History(trials, (*search.earlier.reports, *history.reports))


def _key(settings: Settings) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, repr(value)) for name, value in settings.items()))


def _untried(search: Search, number: int, tried: set[tuple[tuple[str, str], ...]]) -> dict[str, Value] | None:
    """Another point of a space that has few: a random one, else the first that is left."""
    random = _dice(search, number, 1)
    for place in random.random((TRIES, search.space.width)):
        if _key(settings := search.space.at(place)) not in tried:
            return settings
    return next((point for point in search.space.points() if _key(point) not in tried), None)


def _dice(search: Search, number: int, purpose: int = 0) -> np.random.Generator:
    return np.random.default_rng([search.seed, number, purpose])


def _random(search: Search, history: History, number: int) -> dict[str, Value]:
    return search.space.at(_dice(search, number).random(search.space.width))


def _auto(search: Search, history: History, number: int) -> dict[str, Value]:
    start = min(MOST_START, max(LEAST_START, search.space.width + 5))
    if len(history.trials) < start or len(history.reports) < start:
        return _space_filling(search, number)
    if search.metrics > 1:
        history = as_one_metric(history, _dice(search, number, 2))
    if number >= EXPLORED_FROM and number % EXPLORED_EVERY == 0:
        return _random(search, history, number)
    return search.space.at(_most_promising(search, history, number))


def _space_filling(search: Search, number: int) -> dict[str, Value]:
    points = 1 << max(6, number.bit_length())
    sobol = qmc.Sobol(search.space.width, seed=np.random.default_rng([search.seed]))
    return search.space.at(np.asarray(sobol.random(points)[number], np.float64))


def _most_promising(search: Search, history: History, number: int) -> Floats:
    """The candidate that is expected to improve most on the best predicted end of a trial."""
    random = _dice(search, number)
    model, seen = _model(search, history)
    ends, _ = model.predict(Points(seen, np.ones(len(seen))))
    candidates = search.space.snap(_candidates(random, seen[np.argsort(ends)[:NEAR]]))
    mean, variance = model.predict(Points(candidates, np.ones(len(candidates))))
    gain = expected_improvement(mean, variance, float(ends.min()))
    return np.asarray(candidates[int(gain.argmax())], np.float64)


def _candidates(random: np.random.Generator, best: Floats) -> Floats:
    """Places of the whole cube, and places near the best ones."""
    width = best.shape[1]
    anywhere = random.random((CANDIDATES, width))
    middles = best[random.integers(len(best), size=CANDIDATES)]
    near = middles + random.normal(size=(CANDIDATES, width)) * random.choice(SPREADS, size=(CANDIDATES, 1))
    redrawn = random.random((CANDIDATES, width)) < SHARE_REDRAWN
    near[redrawn] = random.random(int(redrawn.sum()))
    return np.concatenate([anywhere, np.clip(near, 0.0, 1.0)])


def _model(search: Search, history: History) -> tuple[Surrogate, Floats]:
    """The surrogate of everything that was reported, and the places of the trials behind it.

    Trials that run are taken to end as predicted (the kriging believer), so that no two workers try the same.
    """
    places = {number: search.space.place(trial.settings) for number, trial in history.trials.items()}
    highest = max(search.rungs or tuple(report.rung for report in history.reports))
    fitted = _fitted_count(len(history.reports))
    first = _kept(history.reports[:fitted], MOST_FITTED)
    kernel = fit_kernel(_points(first, places, highest), _warped(first))
    kept = _kept(history.reports, MOST_CONDITIONED)
    points, values = _points(kept, places, highest), _warped(kept)
    model = Surrogate(kernel, points, values)
    running = [trial for trial in history.trials.values() if trial.state == TrialState.RUNNING]
    if running:
        targets = [Report(trial.number, trial.target or highest, 0.0) for trial in running]
        pending = _points(targets, places, highest)
        mean, _ = model.predict(pending)
        model = Surrogate(kernel, points.plus(pending), np.concatenate([values, mean]))
    return model, np.stack([places[trial] for trial in dict.fromkeys(report.trial for report in kept)])


def _fitted_count(reports: int) -> int:
    """How many of the oldest reports fit the kernel: it is fitted again when there are a quarter more."""
    count = float(LEAST_START)
    while count * REFIT_RATIO <= reports:
        count *= REFIT_RATIO
    return min(reports, int(count))


def _kept(reports: tuple[Report, ...], most: int) -> tuple[Report, ...]:
    """The reports that say most: half from the highest rungs, a quarter the best others, a quarter at random."""
    if len(reports) <= most:
        return reports
    by_rung = sorted(range(len(reports)), key=lambda index: (-reports[index].rung, reports[index].value))
    kept, others = by_rung[: most // 2], by_rung[most // 2 :]
    others.sort(key=lambda index: reports[index].value)
    kept += others[: most // 4]
    others = others[most // 4 :]
    chosen = np.random.default_rng(len(others)).permutation(len(others))[: most - len(kept)]
    return tuple(reports[index] for index in sorted([*kept, *(others[place] for place in chosen)]))


def _points(reports: tuple[Report, ...] | list[Report], places: Mapping[int, Floats], highest: int) -> Points:
    heights = np.log([max(1, report.rung) for report in reports]) / max(np.log(highest), 1e-9)
    place = np.stack([places[report.trial] for report in reports])
    return Points(np.ascontiguousarray(place, np.float64), np.ascontiguousarray(heights, np.float64))


def _warped(reports: tuple[Report, ...]) -> Floats:
    """The values as quantiles of a normal distribution: losses that explode must not hide the others."""
    order = np.argsort(np.argsort([report.value for report in reports], kind="stable"), kind="stable")
    return np.asarray(ndtri((order + 0.5) / len(reports)), np.float64)


_SAMPLERS: Mapping[str, Callable[[Search, History, int], dict[str, Value]]] = {
    "auto": _auto,
    "random": _random,
    **{name: optuna_samplers.sampler_of(name) for name in OPTUNA_SAMPLERS},
}
