"""The options of commands that submit or plan a job, made from the table of a job's fields."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from berth.shared.arguments import WrongUse, duration_s, is_memory, memory_gib, pair, start_time
from berth.shared.field import JobField, read_devices
from berth.shared.job_fields import FIELDS
from berth.shared.project_file import Fields

if TYPE_CHECKING:
    from berth.client import Berth, Spec

AFTER_ANY = "after_any"
CLONES = frozenset({"again", "resume"})
_TYPES: Mapping[str, object] = {"count": int | None, "number": float | None, "switch": bool | None}
_SEVERAL = frozenset({"names", "lines", "assignments", "jobs"})
_PATTERNS = "checkpoint_glob"  # one text of several patterns; its option may be repeated
GIB = "GIB"  # what the help calls an amount of memory
_MODULE, _MEMORY = "module", "gpu_memory_gib"  # of -m: a name is a module, a number is memory


def options_of(command: str) -> list[Any]:
    """The options of one command, made by typer from a function that has nothing else."""

    def nothing() -> None: ...

    cast(Any, nothing).__signature__ = inspect.Signature(list(_parameters(command)))
    app = typer.Typer(add_completion=False)
    app.command()(nothing)
    return typer.main.get_command(app).params


def read_options(berth: "Berth", given: Mapping[str, Any]) -> "Spec":
    """The fields that were given as options; the server knows the defaults of the others.

    Raises:
        WrongUse: a duration, time or NAME=VALUE that cannot be read.
        NotFound: no such job to start after.
    """
    spec: Fields = {}
    given = _with_memory(given)
    for field in FIELDS:
        value = given.get(field.name)
        if field.kind == "jobs":
            value = _jobs(berth, value or [], given.get(AFTER_ANY) or [])
        if value is not None and value not in ([], ()):
            spec[field.name] = _read(field, value)
    return cast("Spec", spec)


def _with_memory(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options with the numbers given to -m as memory, which it meant before there were modules.

    Raises:
        WrongUse: two modules, or two amounts of memory.
    """
    words = given.get(_MODULE) or []
    modules = [word for word in words if not is_memory(word)]
    amounts = [word for word in words if is_memory(word)]
    if given.get(_MEMORY) is not None:
        amounts.append(given[_MEMORY])
    if len(modules) > 1 or len(amounts) > 1:
        what = "module" if len(modules) > 1 else "amount of memory"
        raise WrongUse(f"A job has one {what}; -m was given more than once.")
    return {
        **given,
        _MODULE: modules[0] if modules else None,
        _MEMORY: amounts[0] if amounts else None,
    }


def _read(field: JobField, value: Any) -> Any:
    if field.name == _PATTERNS:
        return ", ".join(value)
    if field.name == "environment":
        from berth.cli.package_files import named

        return named(value)
    match field.kind:
        case "duration":
            return duration_s(value)
        case "number" if field.metavar == GIB:
            return memory_gib(value)
        case "devices":
            return read_devices(value)
        case "time":
            return start_time(value)
        case "assignments":
            return dict(map(pair, value))
        case "arguments":
            import shlex

            return shlex.split(value)
        case "choice":
            return _flag(field) or value
        case "names" | "lines":
            return list(value)
    return value


def _jobs(berth: "Berth", after: Iterable[str], after_any: Iterable[str]) -> list[object]:
    """Ids of jobs by what people call them."""
    from berth.cli.choosing import find_job

    succeeded: list[object] = [find_job(berth, text).id for text in after]
    return succeeded + [{"job": find_job(berth, text).id, "when": "any"} for text in after_any]


def _parameters(command: str) -> Iterator[inspect.Parameter]:
    # The command line of a clone leaves out what stays as it was: only a new job has defaults.
    is_new = command not in CLONES
    for field in FIELDS:
        if command in field.commands.split() and field.option:
            yield _parameter(field.name, field.option, field, field.option_help or field.help, is_new)
            if field.kind == "jobs":
                text = "Jobs that must end first, in any way"
                yield _parameter(AFTER_ANY, f"{field.option}-any", field, text, is_new)


def _parameter(name: str, option: str, field: JobField, text: str, is_new: bool) -> inspect.Parameter:
    default = field.empty if is_new and field.empty else False
    info = typer.Option(*option.split(), metavar=field.metavar or None, help=text, show_default=default)
    annotation = Annotated[_type(field), info]  # type: ignore[valid-type]  # made at run time, for typer
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _type(field: JobField) -> object:
    if field.kind in _SEVERAL or field.name in (_PATTERNS, _MODULE):
        return list[str] | None
    if field.kind == "choice" and _flag(field):
        return bool | None
    return str | None if field.metavar == GIB else _TYPES.get(field.kind, str | None)


def _flag(field: JobField) -> str | None:
    """The choice that an option without a value stands for: model for ``--model``."""
    word = field.option.lstrip("-")
    return word if word in field.choices else None
