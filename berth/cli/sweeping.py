"""berth sweep, sweeps and best."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from berth.cli import submitting
from berth.cli.printing import remark, safe, say
from berth.cli.tables import grid, terminal
from berth.client import Berth, NotFound, Recipe, Spec, Sweep, Trial
from berth.shared.arguments import WrongUse, duration_s

Fields: TypeAlias = dict[str, Any]  # of a sweep, as REST takes them

_TRIALS = re.compile(r"(\d+)\s*(?:trials?)?", re.ASCII)
_WIDTH = re.compile(r"(?:(\d+)-)?(\d+)", re.ASCII)


def read_sweep(
    settings: Sequence[str], space: Path | None, budget: Sequence[str], width: str | None
) -> Fields:
    """The fields of a sweep from its options; the server checks what they mean.

    Raises:
        WrongUse: a budget, width or file that cannot be read.
    """
    fields: Fields = {"budget": {}}
    for text in budget:
        fields["budget"] |= _read_budget(text.strip())
    fields |= _read_width(width)
    if settings:
        fields["set"] = list(settings)
    if space is not None:
        fields["space"] = _read_file(space)
    return fields


def _read_width(width: str | None) -> dict[str, int]:
    """Read "4", the most trials at once, or "2-8" with the least."""
    if width is None:
        return {}
    hit = _WIDTH.fullmatch(width.strip())
    if hit is None:
        raise WrongUse(f"{width!r} is no width; give the most trials at once, such as 4, or 2-8.")
    return {"max_width": int(hit[2])} | ({"min_width": int(hit[1])} if hit[1] else {})


def read_metrics(names: Sequence[str], directions: Sequence[str]) -> Fields:
    """The metrics with their directions, in the order in which both were given.

    Raises:
        WrongUse: a metric without a direction, or the other way round.
    """
    if len(names) != len(directions):
        counts = f"{len(names)} metrics and {len(directions)} directions"
        raise WrongUse(f"Give a --direction for each --metric, in the same order; these are {counts}.")
    if len(names) == 1:
        return {"metric": names[0], "direction": directions[0]}
    pairs = zip(names, directions, strict=True)
    return {"metrics": [{"name": name, "direction": direction} for name, direction in pairs]}


def read_stop_when(text: str | None) -> Fields:
    """Read "0.001 in 10h": the least gain that makes more device time worth it.

    Raises:
        WrongUse: another form.
    """
    if text is None:
        return {}
    gain, _, time = text.partition(" in ")
    wrong = WrongUse(f"{text!r} is no rule; give a gain and device time, such as '0.001 in 10h'.")
    try:
        rule = {"gain": float(gain), "device_hours": duration_s(time.strip()) / 3600}
    except (ValueError, WrongUse):
        raise wrong from None
    if not all(map(math.isfinite, rule.values())):
        raise wrong
    return {"stop_when": rule}


def read_changes(sweep: str | None, budget: Sequence[str], width: str | None) -> Fields:
    """What --extend changes.

    Raises:
        WrongUse: a budget or a width without --extend, or --extend without both.
    """
    changes: Fields = {}
    for text in budget:
        changes |= _read_budget(text.strip())
    changes |= _read_width(width)
    if sweep is not None and not changes:
        raise WrongUse("Give --extend a new --budget or --width, such as --budget '40 trials'.")
    if sweep is None and changes:
        raise WrongUse("--budget and --width change a sweep; name it with --extend.")
    return changes


def _read_budget(text: str) -> dict[str, float]:
    """Read "20 trials", "20", or device time such as 8h."""
    if hit := _TRIALS.fullmatch(text):
        return {"trials": int(hit[1])}
    try:
        return {"device_hours": duration_s(text) / 3600}
    except WrongUse:
        raise WrongUse(f"{text!r} is no budget; give device time such as 8h, or '20 trials'.") from None


def _read_file(path: Path) -> Any:
    value = _parse_file(path)
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise WrongUse(f"{path} has a value that JSON does not have: {error}.") from None
    return value


def _parse_file(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".json":
            return json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise WrongUse(f"{path} cannot be read: {error}.") from None
    try:
        import yaml

        from berth.shared.space_yaml import read_yaml
    except ImportError:
        raise WrongUse(f"Reading {path} needs PyYAML; install it, or write the space as JSON.") from None
    try:
        return read_yaml(text)
    except yaml.YAMLError as error:
        raise WrongUse(f"{path} is not YAML: {error}.") from None


def begin(berth: Berth, code: str | None, spec: Spec, words: Sequence[str], fields: Fields) -> Sweep:
    """Upload the code and begin the sweep; a name of the job is the sweep's."""
    spec = submitting.with_project(code, spec)
    code, spec = submitting.choose_code(code, spec, words)
    if not Path(code).exists():
        raise WrongUse(f"There is no file {code!r} here; name a script, an archive or a folder.")
    if name := spec.pop("name", None):
        fields["name"] = name
    return berth.sweep(code, job=spec, **fields)


def say_begun(sweep: Sweep) -> None:
    for warning in sweep.warnings:
        remark(f"berth: {safe(warning)}")
    budget = [f"{sweep.max_trials} trials"] if sweep.max_trials is not None else []
    budget += [f"{sweep.device_hours:g} device-hours"] if sweep.device_hours is not None else []
    say(
        f"Began {safe(sweep.name)} {sweep.short_id}: at most {' and '.join(budget)}, {sweep.max_width} at once."
    )
    say(f"See the best settings with: berth best {sweep.short_id}")


def changed(berth: Berth, changes: Mapping[str, Any], **named: str | None) -> list[Sweep]:
    """The sweep that an option names, paused, resumed, extended or stopped; empty where none does.

    Raises:
        WrongUse: several options.
    """
    given = {action: text for action, text in named.items() if text is not None}
    if len(given) > 1:
        raise WrongUse("Give one of --pause, --resume, --extend and --stop.")
    found = [(action, berth.find_sweep(text)) for action, text in given.items()]
    return [
        sweep.change(**changes) if action == "extend" else getattr(sweep, action)() for action, sweep in found
    ]


def show_sweeps(sweeps: Sequence[Sweep]) -> None:
    if not sweeps:
        remark(
            "No sweeps yet. Begin one with: berth sweep train.py --set lr=log:1e-5..1e-1 --metric val/loss ..."
        )
        return
    table = grid("id", "state", "sweep", "trials", "best", "device-hours", "")
    for sweep in sweeps:
        budget = "" if sweep.max_trials is None else f" of {sweep.max_trials}"
        table.add_row(
            sweep.short_id,
            sweep.state,
            safe(sweep.name),
            f"{sweep.counted_trials}{budget}",
            "" if sweep.best is None else f"{safe(sweep.metric)} {_number(sweep.best.value)}",
            f"{sweep.used_device_hours:.2f}",
            safe(sweep.reason),
        )
    terminal().print(table)


def best_trials(berth: Berth, text: str | None, count: int) -> tuple[Sweep, list[Trial]]:
    """The best trials of the named sweep, else of the newest, by the best value at any rung.

    With several metrics only the trials of the front.

    Raises:
        NotFound: there is no sweep.
    """
    if text is not None:
        sweep = berth.find_sweep(text)
    else:
        newest = berth.sweeps(limit=1)
        if not newest:
            raise NotFound("You have no sweep; begin one with berth sweep.")
        sweep = newest[0]
    if sweep.json.get("front"):  # older servers know none
        return sweep, sweep.front[:count]
    trials = [trial for trial in sweep.trials() if _best_value(sweep, trial) < math.inf]
    return sweep, sorted(trials, key=lambda trial: _best_value(sweep, trial))[:count]


def _step_of(trial: Trial, value: float) -> int | None:
    """The rung of the best value, which may not be the trial's last one."""
    rungs = (each["rung"] for each in trial.reports if each["value"] == value)
    return min(rungs, default=trial.rung)


def _best_value(sweep: Sweep, trial: Trial) -> float:
    """The best value of a trial with lower as better; infinite where it has none."""
    sign = -1.0 if sweep.direction == "maximize" else 1.0
    return min(
        (sign * each["value"] for each in trial.reports if each["value"] is not None), default=math.inf
    )


def put_together(sweep: Sweep, count: int, *, by: str, **functions: str | None) -> Recipe:
    """Submit the job that averages the answers or the weights of the best trials."""
    given = {name: text for name, text in functions.items() if text is not None}
    return sweep.ensemble(best=count, by=by, **given)


def say_put_together(recipe: Recipe) -> None:
    say(
        f"Submitted job {(recipe.job or '')[-8:]}: {safe(recipe.recipe)} of {safe(recipe.source)} and others."
    )


def show_best(sweep: Sweep, trials: Sequence[Trial]) -> None:
    for warning in sweep.warnings:
        remark(f"berth: {safe(warning)}")
    if not trials:
        remark(
            f"Sweep {safe(sweep.name)} has no value of {safe(sweep.metric)} yet. {safe(sweep.reason)}".rstrip()
        )
        return
    names = list(sweep.space)
    others = [metric["name"] for metric in sweep.json.get("metrics", [])[1:]]  # older servers know one
    columns = ("trial", "state", safe(sweep.metric), *map(safe, others), "at step", *map(safe, names), "job")
    table = grid(*columns)
    sign = -1.0 if sweep.direction == "maximize" else 1.0
    for trial in trials:
        value = sign * _best_value(sweep, trial)
        cells = [safe(_number(trial.settings.get(name))) for name in names]
        values = [_number(value), *(_number(trial.values.get(name)) for name in others)]
        table.add_row(
            str(trial.number), trial.state, *values, str(_step_of(trial, value)), *cells, str(trial.job)[-8:]
        )
    terminal().print(table)
    if others:
        say(f"No other trial beats one of these in all of {safe(', '.join([sweep.metric, *others]))}.")
        return
    say(f"Run the winner again with: berth again {str(trials[0].job)[-8:]}")


def _number(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)
