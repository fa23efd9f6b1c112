"""Hands the settings of a trial to an unchanged script: as arguments, or as environment variables."""

import json
import re
from collections.abc import Sequence
from typing import Any

from orchestrator.jobs.submission.intake import parse_spec
from orchestrator.models import SETTINGS_VARIABLE, Sweep
from orchestrator.spec.job_spec import JobSpec
from orchestrator.sweeps.core.reading import read_space
from orchestrator.sweeps.core.space import Settings, Space, Value

LONGEST_NAME = 180  # of a sweep in the names of its trials, which have a number behind it
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


def spec_of(sweep: Sweep, number: int, settings: Settings) -> JobSpec:
    """The job of one trial."""
    fields = {
        **sweep.job_fields,
        "name": f"{sweep.name[:LONGEST_NAME]} [{number}]",
        "source": {"bundle": sweep.bundle},
    }
    return parse_spec(fill(fields, sweep.hand_over, read_space(sweep.space).handed_over(settings)))


def fill(fields: dict[str, Any], hand_over: str, settings: Settings) -> dict[str, Any]:
    """The fields of a job with settings filled in.

    ``{name}`` in an argument or a word of the command becomes the value. A setting that no word names becomes
    ``--name value`` at the end (``--name=value`` below zero), or a variable of its name in capitals with ``env``. One variable has all settings as JSON;
    with ``json`` it is the only place that the others are in.
    """
    named = placeholders([*fields.get("args", []), *fields.get("command", [])])
    filled = {
        name: [_replaced(word, settings) for word in fields.get(name, [])] for name in ("args", "command")
    }
    env = {**fields.get("env", {}), SETTINGS_VARIABLE: json.dumps(dict(settings))}
    others = {name: value for name, value in settings.items() if name not in named}
    if hand_over == "env":
        env |= {variable_of(name): text_of(value) for name, value in others.items()}
    elif hand_over == "args":
        filled["args"] += [word for name, value in others.items() for word in _option(name, text_of(value))]
    return {**fields, **{name: words for name, words in filled.items() if words}, "env": env}


def _option(name: str, value: str) -> tuple[str, ...]:
    """An option with its value; argparse takes a word such as -1e-05 for another option, if it stands alone."""
    return (f"--{name}={value}",) if value.startswith("-") else (f"--{name}", value)


def placeholders(words: Sequence[str]) -> set[str]:
    return {name for word in words for name in _PLACEHOLDER.findall(word)}


def _replaced(word: str, settings: Settings) -> str:
    """A word with its settings; other braces, such as ``{checkpoint}``, stay for the launch."""
    return _PLACEHOLDER.sub(lambda hit: text_of(settings[hit[1]]) if hit[1] in settings else hit[0], word)


def text_of(value: Value) -> str:
    """A value as a script reads it: numbers so that they come back the same, true and false in lower case."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def variable_of(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name).upper()


def example(space: Space) -> dict[str, Value]:
    """Some settings of a space, to check a job with before there is a trial."""
    return space.at(space.place({}))
