"""Commands that submit jobs, or ask what a submit would lead to."""

from typing import Annotated

import typer

from berth.cli.options import (
    After,
    AfterAny,
    Data,
    Env,
    Follow,
    Gpus,
    JobId,
    Json,
    Memory,
    Name,
    PoolName,
    Priority,
    Retries,
    StartAt,
    Tags,
    TimeLimit,
    Wait,
)
from berth.cli.printing import show_json

commands = typer.Typer()
secret_app = typer.Typer(help="Secrets for jobs: list, set, forget.", invoke_without_command=True)
commands.add_typer(secret_app, name="secret", rich_help_panel="Submit")


@commands.command(rich_help_panel="Submit")
def run(
    ctx: typer.Context,
    code: Annotated[
        str, typer.Argument(help="a script, a .zip or .tar.gz, a folder, or - for standard input")
    ],
    gpus: Gpus = None,
    memory: Memory = None,
    name: Name = None,
    data: Data = None,
    pool: PoolName = None,
    priority: Priority = None,
    time_limit: TimeLimit = None,
    retries: Retries = None,
    env: Env = None,
    tag: Tags = None,
    after: After = None,
    after_any: AfterAny = None,
    at: StartAt = None,
    entrypoint: Annotated[str | None, typer.Option("--entrypoint", "-e", help="script in the folder")] = None,
    resume_args: Annotated[
        str | None, typer.Option(help='added from the second attempt on: "--resume {checkpoint}"')
    ] = None,
    checkpoint_glob: Annotated[
        list[str] | None,
        typer.Option(metavar="'out/*.pt'", help="checkpoints that the script writes elsewhere"),
    ] = None,
    grace_period: Annotated[
        str | None, typer.Option(metavar="30s", help="time to save between SIGTERM and SIGKILL")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart/--no-restart", help="begin again if all checkpoints are damaged")
    ] = True,
    steps: Annotated[int | None, typer.Option(help="how many there are in all, for the progress")] = None,
    min_gpus: Annotated[
        int | None, typer.Option(help="goes on with so few where the pool has no more that work")
    ] = None,
    hang_timeout: Annotated[
        str | None,
        typer.Option(metavar="30m", help="ends a run that writes nothing for so long, and tries it again"),
    ] = None,
    cpus: Annotated[int | None, typer.Option(help="CPU cores")] = None,
    ram: Annotated[float | None, typer.Option(metavar="GIB", help="main memory")] = None,
    python: Annotated[str | None, typer.Option(help="an interpreter that the pool has")] = None,
    model: Annotated[
        bool, typer.Option("--model", help="the file defines a model only; Berth trains it")
    ] = False,
    preemptible: Annotated[bool, typer.Option("--preemptible", help="may make room for others")] = False,
    array: Annotated[
        str | None,
        typer.Option(metavar="0-9%2", help="many jobs, each with its BERTH_ARRAY_INDEX; %2: two at once"),
    ] = None,
    secret: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="a stored secret to put into the environment")
    ] = None,
    follow: Follow = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Submit a script: berth run train.py -- --lr 3e-4"""
    import shlex

    from berth.arguments import duration_s
    from berth.cli import submitting
    from berth.cli.choosing import connect

    berth = connect()
    spec = submitting.spec_of(
        *(berth, gpus, memory, name, data, pool, priority, time_limit, retries, env, tag),
        *(after, after_any, at, array),
    )
    more = {
        "entrypoint": entrypoint,
        "resume_args": None if resume_args is None else shlex.split(resume_args),
        "checkpoint_glob": ", ".join(checkpoint_glob) if checkpoint_glob else None,
        "grace_period_s": None if grace_period is None else duration_s(grace_period),
        "begin_anew": None if restart else False,
        "total_steps": steps,
        "min_gpus": min_gpus,
        "hang_timeout_s": None if hang_timeout is None else duration_s(hang_timeout),
        "cpus": cpus,
        "memory_gib": ram,
        "python": python,
        "kind": "model" if model else None,
        "preemptible": preemptible or None,
        "secrets": secret or None,
        "args": ctx.obj or None,
    }
    submitting.fill(spec, more)
    raise typer.Exit(
        submitting.report(submitting.submit(berth, code, spec), follow=follow, wait=wait, as_json=as_json)
    )


@commands.command(rich_help_panel="Submit")
def again(
    ctx: typer.Context,
    job: JobId = None,
    gpus: Gpus = None,
    memory: Memory = None,
    name: Name = None,
    data: Data = None,
    pool: PoolName = None,
    priority: Priority = None,
    time_limit: TimeLimit = None,
    retries: Retries = None,
    env: Env = None,
    tag: Tags = None,
    after: After = None,
    after_any: AfterAny = None,
    at: StartAt = None,
    follow: Follow = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """The same code again, with what you change: berth again -- --lr 1e-3"""
    from berth.cli import submitting
    from berth.cli.choosing import connect

    berth = connect()
    changes = submitting.spec_of(
        *(berth, gpus, memory, name, data, pool, priority, time_limit, retries, env, tag),
        *(after, after_any, at),
    )
    new = submitting.run_again(berth, job, changes, ctx.obj)
    raise typer.Exit(submitting.report(new, follow=follow, wait=wait, as_json=as_json))


@commands.command(rich_help_panel="Submit")
def resume(
    ctx: typer.Context,
    job: JobId = None,
    gpus: Gpus = None,
    time_limit: TimeLimit = None,
    follow: Follow = False,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """A new job that goes on from the newest checkpoint of an ended one."""
    from berth.cli import submitting
    from berth.cli.choosing import connect

    berth = connect()
    changes = submitting.spec_of(berth, gpus, time_limit=time_limit)
    new = submitting.run_again(berth, job, changes, ctx.obj, resume=True)
    raise typer.Exit(submitting.report(new, follow=follow, wait=wait, as_json=as_json))


@commands.command(rich_help_panel="Submit")
def plan(
    code: Annotated[
        str | None, typer.Argument(help="a script, to know the memory of its earlier runs")
    ] = None,
    gpus: Gpus = None,
    memory: Memory = None,
    pool: PoolName = None,
    priority: Priority = None,
    time_limit: TimeLimit = None,
    model: Annotated[bool, typer.Option("--model", help="the file defines a model only")] = False,
    preemptible: Annotated[bool, typer.Option("--preemptible", help="may make room for others")] = False,
    as_json: Json = False,
) -> None:
    """When and where a job would run; submits nothing."""
    from berth.cli import planning, submitting
    from berth.cli.choosing import connect

    berth = connect()
    spec = submitting.spec_of(berth, gpus, memory, pool=pool, priority=priority, time_limit=time_limit)
    submitting.fill(spec, {"kind": "model" if model else None, "preemptible": preemptible or None})
    answer = planning.ask(berth, code, spec)
    if as_json:
        show_json(answer.json)
    else:
        planning.say_plan(answer)


@secret_app.callback()
def secret(ctx: typer.Context, as_json: Json = False) -> None:
    if ctx.invoked_subcommand is None:
        list_secrets(as_json=as_json)


@secret_app.command("list")
def list_secrets(as_json: Json = False) -> None:
    """The names of your secrets; values are never shown."""
    from berth.cli.secrets import show_secrets

    show_secrets(as_json=as_json)


@secret_app.command("set")
def set_secret(
    name: Annotated[str, typer.Argument(help="the variable that a job finds it in")], as_json: Json = False
) -> None:
    """Store a secret; asks for its value, or reads it from standard input."""
    from berth.cli.secrets import keep_secret

    keep_secret(name, as_json=as_json)


@secret_app.command("forget")
def forget_secret(name: str, as_json: Json = False) -> None:
    """Delete a secret."""
    from berth.cli.secrets import drop_secret

    drop_secret(name, as_json=as_json)
