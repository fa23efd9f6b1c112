"""The short form of a setting on a command line, such as ``lr=log:1e-5..1e-1``."""

import re
from collections.abc import Sequence

from orchestrator.exceptions import Sentence
from orchestrator.sweeps.core.space import SettingJson, SpaceJson, Value, WrongSpace

HOW = "write a range (lr=1e-5..1e-1, lr=log:1e-5..1e-1, layers=int:2..8), choices (wd=0,0.01), amp=bool or one value"
_SCALE = re.compile(
    r"(?P<domain>.+)\*(?P<root>sqrt\()?(?P<by>[\w.-]+)/(?P<base>[^*/()]+)(?(root)\))", re.ASCII
)
_PREFIX = re.compile(r"(log|int|float|int-log|log-int|choice|fixed):", re.ASCII)
_UNKNOWN_PREFIX = re.compile(r"([A-Za-z][\w-]*):(.*)", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def read_flags(flags: Sequence[str]) -> SpaceJson:
    """Read the settings of ``--set`` into the form that ``read_space`` takes.

    ``NAME=TEXT@OTHER=VALUE`` is a setting that exists only where another has that value; ``|`` separates several.
    ``lr=log:1e-5..1e-1*batch-size/32`` follows another setting in proportion, ``*sqrt(batch-size/32)`` by its root.

    Raises:
        WrongSpace: a flag that cannot be read, or a name that is there twice.
    """
    space: SpaceJson = {}
    for flag in flags:
        name, equals, text = flag.partition("=")
        if not equals or not name.strip() or not text.strip():
            raise WrongSpace(name.strip()[:40], HOW)
        if (name := name.strip()) in space:
            raise WrongSpace(name[:40], "is given twice")
        space[name] = _read_flag(name, text.strip())
    return space


def _read_flag(name: str, text: str) -> SettingJson:
    text, at, condition = text.partition("@")
    scale = _SCALE.fullmatch(text.strip())
    fields = _read_domain(name, scale["domain"].strip() if scale else text.strip())
    if scale:
        rule = "sqrt" if scale["root"] else "linear"
        fields["scale"] = {"by": scale["by"], "base": _value(scale["base"].strip()), "rule": rule}
    if at:
        other, equals, values = condition.partition("=")
        if not equals or not other.strip() or not values.strip():
            raise WrongSpace(name, "write a condition as @optimizer=sgd or @optimizer=sgd|adam")
        fields["when"] = {other.strip(): [_value(one.strip()) for one in values.split("|")]}
    return fields


def _read_domain(name: str, text: str) -> SettingJson:
    hit = _PREFIX.match(text)
    prefix, rest = (hit[1], text[hit.end() :]) if hit else ("", text)
    if prefix == "fixed":
        return {"type": "fixed", "value": _value(rest)}
    if prefix == "choice":
        return {"type": "categorical", "choices": [_value(one.strip()) for one in rest.split(",")]}
    if not prefix and text == "bool":
        return {"type": "bool"}
    low, dots, high = rest.partition("..")
    if dots or prefix:
        return _read_range(name, prefix, low.strip(), high.strip())
    words = [one.strip() for one in text.split(",")]
    _refuse_prefixed_number(name, words)
    values = [_value(word) for word in words]
    if len(values) == 1:
        return {"type": "fixed", "value": values[0]}
    return {"type": "categorical", "choices": values}


def _refuse_prefixed_number(name: str, words: Sequence[str]) -> None:
    """Refuse ``flot:0.1,0.2``, but not ``cuda:0,cuda:1``: numbers after one that has a word are no texts."""
    hit = _UNKNOWN_PREFIX.fullmatch(words[0])
    others = words[1:]
    if hit and others and all(_NUMBER.fullmatch(word) for word in (hit[2], *others)):
        raise _no_type(name, hit[1])


def _no_type(name: str, word: str) -> WrongSpace:
    return WrongSpace(name, Sentence("there is no type {word!r}; {how}", word=word[:40], how=HOW))


def _read_range(name: str, prefix: str, low: str, high: str) -> SettingJson:
    if not prefix and (hit := _UNKNOWN_PREFIX.fullmatch(low)):
        raise _no_type(name, hit[1])
    limits = [_value(low), _value(high)]
    if any(isinstance(limit, bool | str) for limit in limits):
        raise WrongSpace(
            name,
            Sentence(
                "{low!r}..{high!r} is no range of numbers; {how}", low=low[:20], high=high[:20], how=HOW
            ),
        )
    fields: SettingJson = {
        "type": "int" if "int" in prefix else "float",
        "low": limits[0],
        "high": limits[1],
    }
    return fields | ({"log": True} if "log" in prefix else {})


def _value(text: str) -> Value:
    if _INTEGER.fullmatch(text) and len(text) <= 18:
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    if text in {"true", "True"}:
        return True
    if text in {"false", "False"}:
        return False
    return text
