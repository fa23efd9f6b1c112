"""The commands and their options; what they do is imported when they run, so that each starts quickly."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from orchestrator.cli.arguments import WrongUse, split_at_dashes
from orchestrator.cli.printing import remark, show_error, show_json

if TYPE_CHECKING:
    from orchestrator.client import BerthError

CANNOT = 2  # exit status of whatever could not be carried out
SCRIPT_ARGUMENTS = frozenset({"run", "again", "resume"})


class _Commands(TyperGroup):
    """Turns every failure of the client into its sentence."""

    def invoke(self, ctx: Any) -> Any:
        from orchestrator.client import BerthError, NotSignedIn

        try:
            return super().invoke(ctx)
        except NotSignedIn as error:
            show_error(_how_to_sign_in(error), as_json=_wants_json())
        except BerthError as error:
            show_error(error, as_json=_wants_json())
        except WrongUse as error:
            remark(f"berth: {error}")
        raise typer.Exit(CANNOT)


app = typer.Typer(
    name="berth",
    cls=_Commands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Submit, watch and steer training jobs. Alone it prints the devices and the queue.",
)
data_app = typer.Typer(help="Datasets: list, add.", invoke_without_command=True)
secret_app = typer.Typer(help="Secrets for jobs: list, set, forget.", invoke_without_command=True)
calendar_app = typer.Typer(help="Reserved devices: list, add, remove.", invoke_without_command=True)
app.add_typer(calendar_app, name="calendar", rich_help_panel="Devices")
app.add_typer(secret_app, name="secret", rich_help_panel="Submit")
app.add_typer(data_app, name="data", rich_help_panel="Fetch")


def _complete_job(incomplete: str) -> list[tuple[str, str]]:
    """Short ids with the jobs' names, for the shell; nothing where the server does not answer soon."""
    from orchestrator.client import Berth, BerthError

    try:
        with Berth(timeout_s=1) as berth:
            jobs = list(berth.jobs(limit=30))
    except BerthError:
        return []
    return [(job.short_id, f"{job.name} {job.state}") for job in jobs if job.short_id.startswith(incomplete)]


JobId = Annotated[
    str | None, typer.Argument(metavar="[JOB]", help="id, part of it, or name", autocompletion=_complete_job)
]
JobIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB]...", help="ids, parts of them, or names", autocompletion=_complete_job),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Rank = Annotated[int, typer.Option("--rank", "-r", help="whose log")]
Gpus = Annotated[int | None, typer.Option("--gpus", "-g", help="how many devices", show_default=False)]
Memory = Annotated[
    float | None,
    typer.Option("--memory", "-m", metavar="GIB", help="on each device, to share it; default: whole devices"),
]
Name = Annotated[str | None, typer.Option("--name", "-n", help="default: the script's")]
Data = Annotated[list[str] | None, typer.Option("--data", "-d", metavar="NAME[@VERSION]", help="a dataset")]
PoolName = Annotated[str | None, typer.Option("--pool", help="which devices")]
Priority = Annotated[int | None, typer.Option("--priority", "-p", help="0 to 100, higher first")]
TimeLimit = Annotated[
    str | None, typer.Option("--time-limit", "-t", metavar="2h", help="90s, 45m, 2h, 1d12h")
]
Retries = Annotated[int | None, typer.Option("--retries", help="after failures that are not the script's")]
Env = Annotated[list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="a variable for the job")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="to find it again")]
After = Annotated[
    list[str] | None, typer.Option("--after", metavar="JOB", help="start when this one has succeeded")
]
AfterAny = Annotated[
    list[str] | None,
    typer.Option("--after-any", metavar="JOB", help="start when this one has ended in any way"),
]
StartAt = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help="not before: 2h, 22:30, '2026-11-22 07:00'")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="print the log; exit as the job does")]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="return when it has ended; exit as the job does")]


@app.callback()
def overview(ctx: typer.Context, as_json: Json = False) -> None:
    if ctx.invoked_subcommand is not None:
        if ctx.obj and ctx.invoked_subcommand not in SCRIPT_ARGUMENTS:
            raise WrongUse(f"Only {', '.join(sorted(SCRIPT_ARGUMENTS))} take arguments after --.")
        return
    from orchestrator.cli.choosing import connect
    from orchestrator.cli.watching import top

    top(connect(), once=True, as_json=as_json)


@app.command(rich_help_panel="Submit")
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
    steps: Annotated[int | None, typer.Option(help="how many there are in all, for the progress")] = None,
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

    from orchestrator.cli import submitting
    from orchestrator.cli.choosing import connect

    berth = connect()
    spec = submitting.spec_of(
        *(berth, gpus, memory, name, data, pool, priority, time_limit, retries, env, tag),
        *(after, after_any, at, array),
    )
    more = {
        "entrypoint": entrypoint,
        "resume_args": None if resume_args is None else shlex.split(resume_args),
        "total_steps": steps,
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


@app.command(rich_help_panel="Submit")
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
    from orchestrator.cli import submitting
    from orchestrator.cli.choosing import connect

    berth = connect()
    changes = submitting.spec_of(
        *(berth, gpus, memory, name, data, pool, priority, time_limit, retries, env, tag),
        *(after, after_any, at),
    )
    new = submitting.run_again(berth, job, changes, ctx.obj)
    raise typer.Exit(submitting.report(new, follow=follow, wait=wait, as_json=as_json))


@app.command(rich_help_panel="Submit")
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
    from orchestrator.cli import submitting
    from orchestrator.cli.choosing import connect

    berth = connect()
    changes = submitting.spec_of(berth, gpus, time_limit=time_limit)
    new = submitting.run_again(berth, job, changes, ctx.obj, resume=True)
    raise typer.Exit(submitting.report(new, follow=follow, wait=wait, as_json=as_json))


@app.command(rich_help_panel="Look")
def ps(
    state: Annotated[str | None, typer.Option(help="one or several, separated by commas")] = None,
    mine: Annotated[bool, typer.Option("--mine", help="an operator sees everybody's otherwise")] = False,
    owner: Annotated[str | None, typer.Option(help="whose")] = None,
    tag: Annotated[str | None, typer.Option(help="with this tag")] = None,
    search: Annotated[str | None, typer.Option("--search", "-q", help="part of a name or id")] = None,
    pool: PoolName = None,
    count: Annotated[int, typer.Option("--number", "-n", min=1, help="at most so many")] = 20,
    as_json: Json = False,
) -> None:
    """The newest jobs."""
    from orchestrator.cli.choosing import connect

    berth = connect()
    whose = berth.me().username if mine else owner
    jobs = list(berth.jobs(state=state, owner=whose, tag=tag, q=search, pool=pool, limit=count))
    if as_json:
        show_json([job.json for job in jobs])
        return
    from orchestrator.cli.tables import job_table, terminal

    if jobs:
        console = terminal()
        console.print(job_table(jobs, console.width))
    elif any((state, whose, tag, search, pool)):
        remark("No job is like that.")
    else:
        remark("No jobs yet. Submit one with: berth run train.py")


@app.command(rich_help_panel="Look")
def top(
    once: Annotated[bool, typer.Option("--once", help="print it and return")] = False, as_json: Json = False
) -> None:
    """Devices and jobs, live."""
    from orchestrator.cli import watching
    from orchestrator.cli.choosing import connect

    watching.top(connect(), once=once, as_json=as_json)


@app.command(rich_help_panel="Look")
def watch(
    job: JobId = None,
    metric: Annotated[str | None, typer.Option(help="which to draw; default: the loss")] = None,
    rank: Rank = 0,
    as_json: Json = False,
) -> None:
    """Loss and log of a job, live; exits as the job does."""
    from orchestrator.cli import watching
    from orchestrator.cli.choosing import connect, newest_running

    chosen = newest_running(connect(), job)
    raise typer.Exit(watching.watch(chosen, metric=metric, rank=rank, as_json=as_json))


@app.command(rich_help_panel="Look")
def why(job: JobId = None, as_json: Json = False) -> None:
    """Why a job waits, until when, and what would start it now; default: your oldest waiting one."""
    from orchestrator.cli.choosing import connect, oldest_waiting

    chosen = oldest_waiting(connect(), job)
    answer = chosen.explain()
    if as_json:
        show_json(answer.json)
        return
    from orchestrator.cli.explaining import explain

    explain(chosen, answer)


@app.command(rich_help_panel="Submit")
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
    from orchestrator.cli import planning, submitting
    from orchestrator.cli.choosing import connect

    berth = connect()
    spec = submitting.spec_of(berth, gpus, memory, pool=pool, priority=priority, time_limit=time_limit)
    submitting.fill(spec, {"kind": "model" if model else None, "preemptible": preemptible or None})
    answer = planning.ask(berth, code, spec)
    if as_json:
        show_json(answer.json)
    else:
        planning.say_plan(answer)


@app.command(rich_help_panel="Look")
def logs(
    job: JobId = None,
    error: Annotated[bool, typer.Option("--error", help="why it failed, with the last lines before")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="go on until it ends; exit as it does")
    ] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="only the last lines")] = None,
    rank: Rank = 0,
    attempt: Annotated[int | None, typer.Option("--attempt", "-a", min=1, help="default: the newest")] = None,
    as_json: Json = False,
) -> None:
    """The log of a job; default: your newest one, with --error your newest failed one."""
    from orchestrator.cli import following
    from orchestrator.cli.choosing import FAILED, connect, newest, newest_running

    berth = connect()
    if error:
        following.print_error(newest(berth, job, FAILED, "None of your jobs has failed."), as_json=as_json)
        return
    chosen = newest_running(berth, job)
    if follow:
        raise typer.Exit(following.follow_log(chosen, rank=rank, attempt=attempt, tail=tail, as_json=as_json))
    following.print_log(chosen, rank=rank, attempt=attempt, tail=tail, as_json=as_json)


@app.command(rich_help_panel="Look", context_settings={"ignore_unknown_options": True})
def compare(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB]... or -N", help="the last N of yours")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="also what is the same")] = False,
    as_json: Json = False,
) -> None:
    """What differs between jobs: berth compare -3"""
    from orchestrator.cli.choosing import connect, jobs_to_compare
    from orchestrator.cli.comparing import compare as rows_of
    from orchestrator.cli.comparing import comparison_table, rows_as_json

    chosen = jobs_to_compare(connect(), jobs or ["-2"])
    rows = rows_of(chosen)
    if as_json:
        show_json(rows_as_json(chosen, rows))
        return
    from orchestrator.cli.tables import terminal

    terminal().print(comparison_table(chosen, [row for row in rows if row.differs or everything]))


@app.command(rich_help_panel="Steer")
def cancel(
    jobs: JobIds = None,
    array: Annotated[bool, typer.Option("--array", help="All jobs of the array that it belongs to.")] = False,
    as_json: Json = False,
) -> None:
    """Stop jobs for good; without a name your only one, or it asks which."""
    from orchestrator.cli.steering import cancel_jobs

    cancel_jobs(jobs, array=array, as_json=as_json)


@app.command(rich_help_panel="Steer")
def hold(jobs: JobIds = None, as_json: Json = False) -> None:
    """Keep waiting jobs from starting."""
    from orchestrator.cli.steering import hold_jobs

    hold_jobs(jobs, as_json=as_json)


@app.command(rich_help_panel="Steer")
def release(jobs: JobIds = None, as_json: Json = False) -> None:
    """Let held jobs start again."""
    from orchestrator.cli.steering import release_jobs

    release_jobs(jobs, as_json=as_json)


@app.command(rich_help_panel="Steer")
def move(
    job: Annotated[str, typer.Argument(help="a waiting job of yours", autocompletion=_complete_job)],
    before: Annotated[
        str | None, typer.Option("--before", help="this one", autocompletion=_complete_job)
    ] = None,
    behind: Annotated[
        str | None, typer.Option("--behind", help="this one", autocompletion=_complete_job)
    ] = None,
    as_json: Json = False,
) -> None:
    """Order your waiting jobs among themselves: berth move a --before b"""
    from orchestrator.cli.steering import move_job

    move_job(job, before=before, behind=behind, as_json=as_json)


@app.command(rich_help_panel="Fetch")
def pull(
    job: JobId = None,
    files: Annotated[list[str] | None, typer.Argument(help="paths or patterns; default: all")] = None,
    to: Annotated[Path | None, typer.Option("--to", help="folder; default: one named after the job")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", "-c", metavar="STEP", help="a checkpoint, or latest, as .tar"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace files that are here and differ")] = False,
    as_json: Json = False,
) -> None:
    """Download what a job wrote to its output folder, or a checkpoint."""
    from orchestrator.cli import pulling
    from orchestrator.cli.choosing import connect, newest_running

    chosen = newest_running(connect(), job)
    if checkpoint is not None:
        fetched = [pulling.pull_checkpoint(chosen, checkpoint, to)]
    else:
        fetched = pulling.pull_files(chosen, files or [], to, overwrite=force)
    if as_json:
        show_json([str(path) for path in fetched])
    else:
        for path in fetched:
            typer.echo(path)


@data_app.callback()
def data(ctx: typer.Context, as_json: Json = False) -> None:
    if ctx.invoked_subcommand is None:
        list_data(as_json=as_json)


@data_app.command("list")
def list_data(as_json: Json = False) -> None:
    """Every registered dataset."""
    from orchestrator.cli.choosing import connect

    datasets = connect().datasets()
    if as_json:
        show_json([each.json for each in datasets])
        return
    from orchestrator.cli.explaining import dataset_table
    from orchestrator.cli.tables import terminal

    if datasets:
        terminal().print(dataset_table(datasets))
    else:
        remark("No datasets yet. Register one with: berth data add NAME PATH")


@data_app.command("add")
def add_data(
    name: Annotated[str, typer.Argument(help="how jobs call it")],
    path: Annotated[str, typer.Argument(help="on the server: absolute, or below the root")],
    root: Annotated[str | None, typer.Option(help="one of the server's dataset roots")] = None,
    version: Annotated[str, typer.Option(help="versions never change")] = "1",
    description: Annotated[str, typer.Option()] = "",
    as_json: Json = False,
) -> None:
    """Register a file or folder of the server as a dataset."""
    from orchestrator.cli.choosing import connect
    from orchestrator.cli.explaining import say_dataset

    added = connect().add_dataset(name, root=root, path=path, version=version, description=description)
    if as_json:
        show_json(added.json)
    else:
        say_dataset(added)


@secret_app.callback()
def secret(ctx: typer.Context, as_json: Json = False) -> None:
    if ctx.invoked_subcommand is None:
        list_secrets(as_json=as_json)


@secret_app.command("list")
def list_secrets(as_json: Json = False) -> None:
    """The names of your secrets; values are never shown."""
    from orchestrator.cli.secrets import show_secrets

    show_secrets(as_json=as_json)


@secret_app.command("set")
def set_secret(
    name: Annotated[str, typer.Argument(help="the variable that a job finds it in")], as_json: Json = False
) -> None:
    """Store a secret; asks for its value, or reads it from standard input."""
    from orchestrator.cli.secrets import keep_secret

    keep_secret(name, as_json=as_json)


@secret_app.command("forget")
def forget_secret(name: str, as_json: Json = False) -> None:
    """Delete a secret."""
    from orchestrator.cli.secrets import drop_secret

    drop_secret(name, as_json=as_json)


@calendar_app.callback()
def calendar(ctx: typer.Context, pool: PoolName = None, as_json: Json = False) -> None:
    if ctx.invoked_subcommand is None:
        list_calendar(pool=pool, as_json=as_json)


@calendar_app.command("list")
def list_calendar(pool: PoolName = None, as_json: Json = False) -> None:
    """What is reserved, for whom and when."""
    from orchestrator.cli.calendar import show_calendar

    show_calendar(pool, as_json=as_json)


@calendar_app.command("add")
def add_to_calendar(
    name: Annotated[str, typer.Argument(help="what people read while they wait")],
    devices: Annotated[str, typer.Option("--devices", "-d", help="a number, or ids separated by commas")],
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="2h, 22:30, '2026-11-22 07:00'")],
    people: Annotated[
        list[str] | None, typer.Option("--for", metavar="NAME", help="who may use them")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="its end")] = None,
    pool: Annotated[str, typer.Option("--pool", help="whose devices")] = "default",
    weekly: Annotated[bool, typer.Option("--weekly", help="again each week")] = False,
    maintenance: Annotated[bool, typer.Option("--maintenance", help="for nobody")] = False,
    as_json: Json = False,
) -> None:
    """Keep devices free for people; for operators."""
    from orchestrator.cli.calendar import add_entry

    add_entry(
        name,
        devices=devices,
        people=people or [],
        start=start,
        until=until,
        pool=pool,
        weekly=weekly,
        maintenance=maintenance,
        as_json=as_json,
    )


@calendar_app.command("remove")
def remove_from_calendar(entry: Annotated[int, typer.Argument(help="its id")], as_json: Json = False) -> None:
    """Give the devices back to everybody; for operators."""
    from orchestrator.cli.calendar import remove_entry

    remove_entry(entry, as_json=as_json)


@app.command(rich_help_panel="Devices")
def gpu(device: Annotated[str, typer.Argument(help="index, id or label")], as_json: Json = False) -> None:
    """One device: who is on it, and what it shows."""
    from orchestrator.cli.choosing import connect
    from orchestrator.cli.explaining import find_device, show_device

    found = find_device(connect(), device)
    if as_json:
        show_json(found.json)
    else:
        show_device(found)


@app.command(rich_help_panel="Devices")
def usage(
    by: Annotated[str, typer.Option(help="owner, pool or day")] = "owner",
    days: Annotated[float, typer.Option(min=0.04, max=400, help="how far back")] = 30.0,
    pool: PoolName = None,
    as_json: Json = False,
) -> None:
    """Who used the devices, and what of it was wasted."""
    from orchestrator.cli.choosing import connect
    from orchestrator.cli.using import show_usage

    found = connect().usage(by, days=days, pool=pool)
    if as_json:
        show_json(found.json)
    elif found.rows:
        show_usage(found)
    else:
        remark("Nothing ran in that time.")


@app.command(rich_help_panel="Devices")
def drain(
    device: Annotated[str, typer.Argument(help="index, id or label")],
    undo: Annotated[bool, typer.Option("--undo", help="let jobs start on it again")] = False,
    as_json: Json = False,
) -> None:
    """Start nothing new on a device; for operators."""
    from orchestrator.cli.choosing import connect
    from orchestrator.cli.explaining import find_device, say_drained

    berth = connect()
    changed = berth.set_device(find_device(berth, device).id, "enabled" if undo else "draining")
    if as_json:
        show_json(changed.json)
    else:
        say_drained(changed)


@app.command(rich_help_panel="Server")
def login(
    url: Annotated[str | None, typer.Argument(help="such as http://gpu-box:8265")] = None,
    token: Annotated[str | None, typer.Option(help="- reads it from standard input; default: asks")] = None,
    as_json: Json = False,
) -> None:
    """Keep a token for this server."""
    from orchestrator.cli.signing_in import log_in

    log_in(url, token, as_json=as_json)


@app.command(rich_help_panel="Server")
def logout(as_json: Json = False) -> None:
    """Forget the token."""
    from orchestrator.cli.signing_in import log_out

    log_out(as_json=as_json)


def start(words: list[str]) -> None:
    """Run one command; does not return."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without UTF-8 gets ? instead of an error
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    ours, for_script = split_at_dashes(words)
    app(args=ours, obj=for_script, prog_name="berth")


def _wants_json() -> bool:
    return "--json" in split_at_dashes(sys.argv[1:])[0]


def _how_to_sign_in(error: "BerthError") -> "BerthError":
    """The server's sentence speaks of headers; here a command does it."""
    from orchestrator.client import Berth, NotSignedIn

    berth = Berth()
    sentence = (
        f"The token for {berth.url} is unknown, expired or revoked. Make another at {berth.url}/account, then run: berth login"
        if berth.token
        else f"You are not logged in at {berth.url}. Make a token at {berth.url}/account, then run: berth login"
    )
    return NotSignedIn(sentence, status=error.status, code=error.code)
