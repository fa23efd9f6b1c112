"""Replays the search of a sweep on tables of learning curves, beside Optuna in the same run.

    python -m benchmarks.sweeps --table T.npz --workers 4 --restart-epochs 2 --seeds 20 --json OUT

The decisions are made by ``orchestrator.sweeps.core``, as in production: only the clock and the trainings are replayed.
A table has ``accuracy`` (tasks x configurations x epochs, in percent) and an array of one value for each configuration
and setting. What a sampler suggests is taken to the nearest configuration that was not tried yet, for both alike, and
both learn the settings of that configuration. Regret: 0 is the best value of the table, 1 that of a configuration of
median quality. The budget is in full trainings for each worker; a paused trial that is resumed costs
``--restart-epochs`` more.
"""

import argparse
import heapq
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

# The matrices are small, and each task has a process of its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import Figure, Outcome
from benchmarks.next_trial import measure_next_trial_s
from benchmarks.stats import median, spread
from orchestrator.sweeps.core.history import History, Report, Search, Trial, TrialState
from orchestrator.sweeps.core.reading import read_space
from orchestrator.sweeps.core.rungs import ETA, Verdict, next_rung, resumable, rungs_for, verdict_at
from orchestrator.sweeps.core.space import Space, Value
from orchestrator.sweeps.core.suggest import suggest

FIGURES = (
    *(
        Figure(
            f"regret_vs_optuna_{budget}", "", f"our regret over Optuna's at {budget} trainings a worker", 0.90
        )
        for budget in (2, 5, 10)
    ),
    *(
        Figure(
            f"regret_vs_optuna_our_rungs_{budget}",
            "",
            f"the same against Optuna with our first rung, {budget} trainings",
        )
        for budget in (2, 5, 10)
    ),
    Figure("suggest_ms_p95", "ms", "one suggestion with 1,000 finished trials", 500),
    Figure("next_trial_s", "s", "from a trial's rung to the first line of the next trial, warm, median", 1.5),
)
BUDGETS = (2, 5, 10)
TABLE = Path(__file__).parent / "data" / "curves" / "lcbench_dev.npz"
SEEDS = 3  # of `make bench`; --seeds for more
FINISHED_TRIALS = 1000
SUGGESTIONS = 40

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Leg:
    """A part of a training that a free worker is given."""

    configuration: int
    begin: int
    end: int
    at_once: bool  # it costs no restart


class Policy(Protocol):
    """What a replay asks; ``tell`` comes for each end of a leg, in the order of time."""

    def ask(self) -> Leg | None: ...

    def tell(self, configuration: int, epoch: int, regret: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Table:
    """The curves of one task as regret, shape ``(configurations, epochs)``, with the settings behind them."""

    regret: Floats
    space: Space
    settings: Sequence[dict[str, Value]]
    places: Floats

    def nearest(self, settings: dict[str, Value], used: NDArray[np.bool_]) -> int:
        """The unused configuration that is nearest to these settings."""
        distance = ((self.places - self.space.place(settings)) ** 2).sum(1)
        distance[used] = np.inf
        return int(distance.argmin())


class Ours:
    """The policy of production, with its history in memory."""

    def __init__(self, table: Table, seed: int, restart: float, sampler: str = "auto") -> None:
        self.table, self.restart = table, restart
        self.rungs = rungs_for(table.regret.shape[1])
        self.search = Search(table.space, seed, sampler, self.rungs)
        self.history = History()
        self.used = np.zeros(len(table.settings), np.bool_)
        self.configurations: dict[int, int] = {}  # by trial
        self.going_on: list[Leg] = []

    def ask(self) -> Leg | None:
        if self.going_on:
            return self.going_on.pop()
        if resumed := resumable(self.history, self.rungs, self.restart):
            number, target = resumed
            begin = self.history.trials[number].target or 0
            self._set(replace(self.history.trials[number], state=TrialState.RUNNING, target=target))
            return Leg(self.configurations[number], begin, target, at_once=False)
        number = len(self.history.trials)
        settings = None if self.used.all() else suggest(self.search, self.history, number)
        if settings is None:
            return None
        configuration = self.table.nearest(settings, self.used)
        self.used[configuration] = True
        self.configurations[number] = configuration
        self._set(Trial(number, self.table.settings[configuration], target=self.rungs[0]))
        return Leg(configuration, 0, self.rungs[0], at_once=True)

    def tell(self, configuration: int, epoch: int, regret: float) -> None:
        number = next(trial for trial, one in self.configurations.items() if one == configuration)
        self.history = replace(self.history, reports=(*self.history.reports, Report(number, epoch, regret)))
        target = next_rung(self.rungs, epoch)
        verdict = verdict_at(self.history, self.rungs, number, epoch, can_resume=True)
        trial = self.history.trials[number]
        if target is None:
            self._set(replace(trial, state=TrialState.ENDED))
        elif verdict == Verdict.GO_ON:
            self._set(replace(trial, target=target))
            self.going_on.append(Leg(configuration, epoch, target, at_once=True))
        else:
            self._set(replace(trial, state=TrialState.PAUSED))

    def _set(self, trial: Trial) -> None:
        self.history = replace(self.history, trials={**self.history.trials, trial.number: trial})


class Optuna:
    """Optuna's TPE with its successive halving, which prunes for good."""

    def __init__(self, table: Table, seed: int, first_rung: int = 1) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.optuna, self.table = optuna, table
        self.rungs = rungs_for(table.regret.shape[1], first_rung)
        self.study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=seed),
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=first_rung, reduction_factor=ETA),
        )
        self.distributions: dict[str, Any] = {
            f"x{column}": optuna.distributions.FloatDistribution(0, 1)
            for column in range(table.places.shape[1])
        }
        self.used = np.zeros(len(table.settings), np.bool_)
        self.trials: dict[int, Any] = {}
        self.going_on: list[Leg] = []

    def ask(self) -> Leg | None:
        if self.going_on:
            return self.going_on.pop()
        if self.used.all():
            return None
        asked = self.study.ask(self.distributions)
        place = np.array([asked.params[name] for name in self.distributions])
        configuration = self.table.nearest(self.table.space.at(place), self.used)
        self.used[configuration] = True
        # Optuna gets the settings that were tried, which may differ from its own suggestion: a failed trial is ignored.
        self.study.tell(asked, state=self.optuna.trial.TrialState.FAIL)
        self.study.enqueue_trial(
            dict(zip(self.distributions, self.table.places[configuration].tolist(), strict=True))
        )
        self.trials[configuration] = self.study.ask(self.distributions)
        return Leg(configuration, 0, self.rungs[0], at_once=True)

    def tell(self, configuration: int, epoch: int, regret: float) -> None:
        trial = self.trials[configuration]
        trial.report(regret, epoch)
        target = next_rung(self.rungs, epoch)
        if target is None:
            self.study.tell(trial, regret)
        elif trial.should_prune():
            self.study.tell(trial, state=self.optuna.trial.TrialState.PRUNED)
        else:
            self.going_on.append(Leg(configuration, epoch, target, at_once=True))


def replay(
    policy: Policy, regret: Floats, workers: int, horizon: float, restart: float
) -> list[tuple[float, float]]:
    """The best regret of each leg by its end, in epochs of one worker."""
    free = [(0.0, worker) for worker in range(workers)]
    busy: dict[int, Leg] = {}
    seen = []
    while free:
        now, worker = heapq.heappop(free)
        if (leg := busy.pop(worker, None)) is not None:
            seen.append((now, float(regret[leg.configuration, leg.begin : leg.end].min())))
            policy.tell(leg.configuration, leg.end, float(regret[leg.configuration, leg.end - 1]))
        if now >= horizon or (leg := policy.ask()) is None:
            continue
        busy[worker] = leg
        cost = leg.end - leg.begin + (0.0 if leg.at_once else restart)
        heapq.heappush(free, (now + cost, worker))
    return seen


def read_tables(path: Path) -> list[Table]:
    """The tasks of a file; ranges and scales come from the values of the table itself."""
    with np.load(path) as file:
        accuracy = file["accuracy"].astype(np.float64)
        columns = {name: file[name] for name in file.files if file[name].shape == accuracy.shape[1:2]}
    columns.pop("tasks", None)
    space = read_space({name: _range_of(values) for name, values in columns.items()})
    names = [setting.name for setting in space.settings]
    settings: list[dict[str, Value]] = [
        {
            name: (int if space.settings[place].type == "int" else float)(columns[name][row])
            for place, name in enumerate(names)
        }
        for row in range(accuracy.shape[1])
    ]
    places = np.stack([space.place(each) for each in settings])
    return [Table(_regret(task), space, settings, places) for task in accuracy]


def _range_of(values: NDArray[Any]) -> dict[str, Any]:
    low, high = float(values.min()), float(values.max())
    whole = bool((values == np.round(values)).all())
    log = low > 0 and _off_middle(np.log(values)) < _off_middle(values)
    return {"type": "int" if whole else "float", "low": low, "high": high, **({"log": True} if log else {})}


def _off_middle(values: NDArray[Any]) -> float:
    """How far the median lies from the middle of the range; the scale that values were drawn on has it there."""
    low, high = float(values.min()), float(values.max())
    return abs((float(np.median(values)) - low) / max(high - low, 1e-12) - 0.5)


def _regret(accuracy: Floats) -> Floats:
    best, median = accuracy.max(), float(np.median(accuracy[:, -1]))
    return np.asarray(np.clip((best - accuracy) / (best - median), 0, None), np.float64)


@dataclass(slots=True)
class Run:
    """What to replay, and on how many seeds."""

    tables: Sequence[Table]
    workers: int = 4
    restart: float = 2.0
    seeds: int = 20
    budgets: Sequence[int] = BUDGETS
    processes: int = 1
    found: dict[str, Floats] = field(default_factory=dict)

    def mean_regret(self, name: str, make: Callable[[Table, int], Policy]) -> Floats:
        """The mean over tasks and seeds for each budget; the values behind it are kept in ``found``.

        Args:
            make: can be pickled, since tasks are replayed in processes of their own.
        """
        replayed = partial(_replay_task, make, self)
        if self.processes > 1:
            with ProcessPoolExecutor(self.processes, get_context("spawn")) as pool:
                found = np.stack(list(pool.map(replayed, self.tables)))
        else:
            found = np.stack([replayed(table) for table in self.tables])
        self.found[name] = found
        mean = np.asarray(found.mean((0, 1)), np.float64)
        print(f"{name:34} regret at {list(self.budgets)}: {mean.round(4).tolist()}", flush=True)
        return mean


def _replay_task(make: Callable[[Table, int], Policy], run: Run, table: Table) -> Floats:
    """The best regret on one task; shape ``(seeds, budgets)``."""
    warnings.simplefilter("ignore")  # Optuna's about experimental arguments
    epochs = table.regret.shape[1]
    found = np.ones((run.seeds, len(run.budgets)))
    for seed in range(run.seeds):
        seen = replay(make(table, seed), table.regret, run.workers, max(run.budgets) * epochs, run.restart)
        for place, budget in enumerate(run.budgets):
            inside = [regret for at, regret in seen if at <= budget * epochs]
            found[seed, place] = min(inside, default=1.0)
    return found


def suggest_ms(space: Space) -> list[float]:
    """The times of suggestions in a sweep with 1,000 finished trials, each with a fit of its own."""
    random = np.random.default_rng(0)
    rungs = rungs_for(52)
    trials, reports = {}, []
    for number in range(FINISHED_TRIALS):
        place = random.random(space.width)
        trials[number] = Trial(number, space.at(place), TrialState.ENDED, rungs[-1])
        value = float(((place - 0.3) ** 2).sum() + random.normal() * 0.05)
        reports += [Report(number, rung, value / math.log(rung + 1)) for rung in rungs]
    times_ms = []
    for number in range(SUGGESTIONS):
        shuffled = random.permutation(len(reports))
        history = History(trials, tuple(reports[index] for index in shuffled))
        began = time.perf_counter()
        suggest(Search(space, number, "auto", rungs), history, FINISHED_TRIALS + number)
        times_ms.append(1000 * (time.perf_counter() - began))
    return times_ms


def _ours_with(restart: float, sampler: str, table: Table, seed: int) -> Policy:
    return Ours(table, seed, restart, sampler)


def compare(run: Run, samplers: Sequence[str] = ("auto",)) -> Outcome:
    """Ours beside Optuna, with its own first rung and with ours."""
    outcome = Outcome()
    ours = run.mean_regret("ours", partial(_ours_with, run.restart, samplers[0]))
    for sampler in samplers[1:]:
        run.mean_regret(f"ours with {sampler}", partial(_ours_with, run.restart, sampler))
    first = rungs_for(run.tables[0].regret.shape[1])[0]
    own = run.mean_regret("Optuna, first rung 1", Optuna)
    as_ours = run.mean_regret(f"Optuna, first rung {first}", partial(Optuna, first_rung=first))
    for place, budget in enumerate(run.budgets):
        for name, rival in (("optuna", own), ("optuna_our_rungs", as_ours)):
            outcome.figures[f"regret_vs_{name}_{budget}"] = float(ours[place] / max(rival[place], 1e-9))
    times_ms = suggest_ms(run.tables[0].space)
    outcome.figures["suggest_ms_p95"] = float(np.percentile(times_ms, 95))
    outcome.details = {
        "regret": {name: found.mean((0, 1)).tolist() for name, found in run.found.items()},
        "by_task": {name: found.mean(1).tolist() for name, found in run.found.items()},
        "budgets": list(run.budgets),
        "workers": run.workers,
        "restart_epochs": run.restart,
        "seeds": run.seeds,
    }
    return outcome


def cores() -> int:
    return len(os.sched_getaffinity(0))


def measure() -> Outcome:
    outcome = compare(Run(read_tables(TABLE), seeds=SEEDS, processes=cores()))
    times_s = measure_next_trial_s()
    outcome.figures["next_trial_s"] = median(times_s)
    outcome.details["next_trial_s"] = spread(times_s, 3)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweeps")
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--restart-epochs", type=float, default=2.0)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--samplers", nargs="+", default=["auto"], help="further samplers to replay with our rungs"
    )
    parser.add_argument("--processes", type=int, help="tasks replayed at once; default: one a core")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    tables = read_tables(given.table)
    run = Run(tables, given.workers, given.restart_epochs, given.seeds, processes=given.processes or cores())
    outcome = compare(run, given.samplers)
    for name, value in outcome.figures.items():
        print(f"{name:34} {value:.3f}")
    if given.json:
        given.json.write_text(
            json.dumps({"figures": outcome.figures, "details": outcome.details}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
