"""berth plan: when and where a job would run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from berth.cli.explaining import say_calibration, say_changes
from berth.cli.local_data import is_path
from berth.cli.printing import safe, say
from berth.client import Berth, BerthError, Plan, Spec
from berth.shared import words


def ask(berth: Berth, code: str | None, spec: Spec) -> Plan:
    """Plan a job; by a script's text the server finds its earlier runs.

    Raises:
        BerthError: there is no such script, or a submit would be refused.
    """
    if code is not None:
        path = Path(code)
        if path.suffix != ".py" or not path.is_file():
            raise BerthError(f"There is no script {code!r} here; name a .py file, or leave it out.")
        spec["entrypoint"] = path.name
        spec["source"] = {"text": path.read_text(errors="replace")}
    if named := spec.get("datasets"):  # what is not pushed yet tells nothing about the start
        spec["datasets"] = [each for each in named if not is_path(str(each))]
    return berth.plan(**spec)


def say_plan(answer: Plan) -> None:
    say(safe(answer.sentence))
    if answer.devices and answer.starts_now:
        say(f"On {', '.join(safe(each['label']) for each in answer.devices)}.")
    if answer.stops:
        say(f"{words.plural(len(answer.stops), 'job')} would be stopped for it, and resumed later.")
    if not answer.starts_now:
        if answer.start_earliest is None:
            say("Its start cannot be estimated yet.")
        if answer.ahead:
            say(f"{words.plural(answer.ahead, 'job')} ahead of it.")
    for each in answer.json.get("outcomes", []):  # an older server sends none
        say(safe(each["sentence"]) + (" (the soonest finish)" if each["is_soonest"] else ""))
    if answer.training is not None:
        say_training(answer.training)
    claim = answer.memory_claim
    if claim["bytes"] is not None:
        error = f", give or take {claim['error_percent']:g} %" if claim["error_percent"] else ""
        say(f"It would claim {words.size(claim['bytes'])} on each device ({claim['source']}{error}).")
    say_changes(answer.would_start_now_with)
    if not answer.starts_now:
        say_calibration(answer.calibration)


def say_training(training: Mapping[str, Any]) -> None:
    """Print how a job of kind model would train on each number of devices, or why there is no estimate."""
    if training["error"]:
        say(f"Its training cannot be planned: {safe(training['error'])}")
    for each in training["devices"]:
        say(f"Trained on {words.plural(each['gpus'], 'device')}: {safe(each['why'])}")
