"""Options and arguments that several commands have."""

from typing import Annotated

import typer


def complete_job(incomplete: str) -> list[tuple[str, str]]:
    """Short ids with the jobs' names, for the shell; nothing where the server does not answer soon."""
    from berth.client import Berth, BerthError

    try:
        with Berth(timeout_s=1) as berth:
            jobs = list(berth.jobs(limit=30))
    except BerthError:
        return []
    return [(job.short_id, f"{job.name} {job.state}") for job in jobs if job.short_id.startswith(incomplete)]


JobId = Annotated[
    str | None, typer.Argument(metavar="[JOB]", help="id, part of it, or name", autocompletion=complete_job)
]
JobIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB]...", help="ids, parts of them, or names", autocompletion=complete_job),
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
