"""Options and arguments that several commands have."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, cast

import typer
from typer.core import TyperArgument, TyperCommand

Given = Mapping[str, Any]  # the options of a command that fill a job, by the name of the field


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
    str | None, typer.Argument(metavar="[JOB]", help="Id, part of it, or name", autocompletion=complete_job)
]
JobIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB]...", help="Ids, parts of them, or names", autocompletion=complete_job),
]
Json = Annotated[bool, typer.Option("--json", help="Output as JSON")]
Rank = Annotated[int, typer.Option("--rank", "-r", help="Rank whose log to read")]
PoolName = Annotated[str | None, typer.Option("--pool", help="Pool of devices")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Log until the end; exit status of the job")]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="No return before the end; exit status of the job")]


class JobCommand(TyperCommand):
    """A command that has the options of all fields it may set; they are made when it is the one that runs."""

    has_job_options = False

    def get_params(self, ctx: Any) -> list[Any]:
        if not self.has_job_options:
            self.has_job_options = True
            arguments = sum(isinstance(one, TyperArgument) for one in self.params)
            from berth.cli.job_options import options_of

            # Trials, sessions and sites are jobs, so their commands take what a submit takes.
            self.params[arguments:arguments] = options_of(
                {"sweep": "run", "start": "run", "join": "run"}.get(str(self.name), str(self.name))
            )
        return super().get_params(ctx)


def takes_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Collect the options of fields into the parameter ``given``, which typer does not see."""
    own = inspect.signature(command)

    @wraps(command)
    def called(**values: Any) -> None:
        others = {name: values.pop(name) for name in own.parameters if name in values}
        command(**others, given=values)

    visible = [one for one in own.parameters.values() if one.name != "given"]
    cast(Any, called).__signature__ = own.replace(parameters=visible)
    return called
