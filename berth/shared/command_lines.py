"""What a job runs, and what starts it, as a person types them."""

import shlex
from collections.abc import Mapping, Sequence

from berth.shared.field import Json, option_words
from berth.shared.job_fields import FIELDS


def started_words(spec: Mapping[str, Json]) -> list[str]:
    """What a job runs, as on a command line: its script, module, command or program; then its arguments."""
    command, module, args = spec.get("command"), spec.get("module"), spec.get("args")
    if isinstance(command, Sequence) and command:
        words = [str(word) for word in command]
    elif module:
        words = ["-m", str(module)]
    else:
        words = [str(spec.get("program") or spec.get("entrypoint") or "")]
    return [*words, *map(str, args if isinstance(args, Sequence) else [])]


def command_line(spec: Mapping[str, Json], defaults: Mapping[str, Json], code: str) -> str:
    """``berth run`` for a job, or ``berth session start``; fields that have their default are left out.

    Args:
        code: the script, archive or folder.
    """
    is_session = spec.get("kind") == "session"
    start = ["berth", "session", "start"] if is_session else ["berth", "run"]
    options = [
        word
        for field in FIELDS
        if field.option
        and not (is_session and field.name == "kind")
        and spec.get(field.name) not in (None, [], {}, defaults.get(field.name))
        and (field.name, spec[field.name]) != ("entrypoint", code)
        for word in option_words(field, spec[field.name])
    ]
    source = spec.get("source")
    if isinstance(source, Mapping) and source.get("git"):
        named = {"--git": source["git"], "--ref": source.get("ref"), "--git-key": source.get("key")}
        words = [word for name, value in named.items() if value for word in (name, str(value))]
        return shlex.join(["berth", "run", *words, *options, *_behind(spec)])
    return shlex.join([*start, *options, code, *_behind(spec)])


def _behind(spec: Mapping[str, Json]) -> list[str]:
    """The arguments of the script, behind dashes."""
    args = spec.get("args")
    return ["--", *map(str, args)] if args and isinstance(args, Sequence) else []
