"""Commands of sweeps: begin one, list them, show the best settings."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from berth.cli.options import Given, JobCommand, Json, takes_job_options
from berth.cli.printing import show_json

commands = typer.Typer()


class Direction(StrEnum):
    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


@commands.command(cls=JobCommand, rich_help_panel="Submit")
@takes_job_options
def sweep(
    ctx: typer.Context,
    code: Annotated[str | None, typer.Argument(help="Script, archive or folder")] = None,
    *,
    given: Given,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Setting, such as lr=log:1e-5..1e-1 or wd=0,0.01")
    ] = None,
    space: Annotated[Path | None, typer.Option("--space", help="File with the space, JSON or YAML")] = None,
    ready: Annotated[str | None, typer.Option("--ready", help="Space by name: lr-range or lr-batch")] = None,
    metric: Annotated[list[str], typer.Option("--metric", help="Metric as reported; several for a front")],
    direction: Annotated[
        list[Direction], typer.Option("--direction", help="Which values are better, for each metric")
    ],
    budget: Annotated[list[str], typer.Option("--budget", help="Device time (8h), or '20 trials'")],
    stop_when: Annotated[
        str | None, typer.Option("--stop-when", help="Least gain to continue, such as '0.001 in 10h'")
    ] = None,
    warm_start: Annotated[
        str | None, typer.Option("--warm-start", help="Earlier sweep to learn from, or auto")
    ] = None,
    sampler: Annotated[
        str | None, typer.Option("--sampler", help="auto, tpe, random, grid, gp, cmaes or nsga2")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the suggestions")] = None,
    width: Annotated[str | None, typer.Option("--width", help="Trials at once, such as 4 or 2-8")] = None,
    by_env: Annotated[
        bool, typer.Option("--settings-by-env", help="Settings as variables, not options")
    ] = False,
    no_early_stopping: Annotated[
        bool, typer.Option("--no-early-stopping", help="Each trial trained to its end")
    ] = False,
    as_json: Json = False,
) -> None:
    """Search for good settings; each trial is a job.

    berth sweep train.py --set lr=log:1e-5..1e-1 --metric val/loss --direction minimize --budget 8h
    """
    from berth.cli import sweeping
    from berth.cli.choosing import connect
    from berth.cli.job_options import read_options

    berth = connect()
    asked = sweeping.read_sweep(settings or [], space, budget, width)
    asked |= sweeping.read_metrics(metric, [str(one) for one in direction])
    asked |= sweeping.read_stop_when(stop_when)
    optional = {"sampler": sampler, "seed": seed, "warm_start": warm_start, "ready": ready}
    asked |= {name: value for name, value in optional.items() if value is not None}
    asked |= ({"hand_over": "env"} if by_env else {}) | (
        {"early_stopping": False} if no_early_stopping else {}
    )
    begun = sweeping.begin(berth, code, read_options(berth, given), ctx.obj or [], asked)
    if as_json:
        show_json(begun.json)
    else:
        sweeping.say_begun(begun)


@commands.command(rich_help_panel="Look")
def sweeps(
    count: Annotated[int, typer.Option("--number", "-n", min=1, help="Most sweeps to list")] = 20,
    stop: Annotated[str | None, typer.Option("--stop", help="Sweep to stop, with its trials")] = None,
    pause: Annotated[str | None, typer.Option("--pause", help="Sweep to pause at its next rungs")] = None,
    resume: Annotated[str | None, typer.Option("--resume", help="Paused sweep to continue")] = None,
    extend: Annotated[
        str | None, typer.Option("--extend", help="Sweep to give another budget or width")
    ] = None,
    budget: Annotated[list[str] | None, typer.Option("--budget", help="New budget, with --extend")] = None,
    width: Annotated[str | None, typer.Option("--width", help="New width, with --extend")] = None,
    as_json: Json = False,
) -> None:
    """List the newest sweeps; or pause, resume, extend or stop one."""
    from berth.cli import sweeping
    from berth.cli.choosing import connect

    berth = connect()
    new = sweeping.read_changes(extend, budget or [], width)
    found = sweeping.changed(berth, new, pause=pause, resume=resume, stop=stop, extend=extend)
    found = found or berth.sweeps(limit=count)
    if as_json:
        show_json([each.json for each in found])
    else:
        sweeping.show_sweeps(found)


@commands.command(rich_help_panel="Look")
def best(
    sweep: Annotated[str | None, typer.Argument(metavar="[SWEEP]", help="Id or part of it")] = None,
    count: Annotated[int, typer.Option("--number", "-n", min=1, help="Trials to show")] = 5,
    ensemble: Annotated[
        int | None, typer.Option("--ensemble", min=2, max=16, help="Best trials to put together by a job")
    ] = None,
    by: Annotated[
        str, typer.Option("--by", help="predictions, or weights for trials of one shape")
    ] = "predictions",
    model: Annotated[
        str | None, typer.Option("--model", help="Function that builds the model, train.py:build_model")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Function that returns the evaluation data")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the best trials of a sweep, and how to run the winner again; or put them together."""
    from berth.cli import sweeping
    from berth.cli.choosing import connect

    chosen, trials = sweeping.best_trials(connect(), sweep, ensemble or count)
    if ensemble is not None:
        made = sweeping.put_together(chosen, ensemble, by=by, model=model, data=data)
        show_json(made.json) if as_json else sweeping.say_put_together(made)
        return
    if as_json:
        show_json([trial.json for trial in trials])
    else:
        sweeping.show_best(chosen, trials)
