"""Reads spaces from JSON or YAML; what cannot be searched is refused with the setting and what to give."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.exceptions import Sentence
from orchestrator.sweeps.core.space import Condition, Scale, Setting, Space, Value, WrongSpace

TYPES = ("float", "int", "categorical", "bool", "fixed")
MOST_SETTINGS = 100
MOST_CHOICES = 1000
RULES = ("linear", "sqrt")  # how a number follows another setting
LARGEST_LIMIT = 2**53  # up to which a double holds every integer


def read_space(data: Any) -> Space:
    """Read a space from JSON or YAML that was parsed: an object of settings by name.

    A list stands for a categorical setting, a single value for a fixed one.

    Raises:
        WrongSpace: a type, limit, choice or condition that cannot be searched.
    """
    if not isinstance(data, Mapping) or not data:
        raise WrongSpace("", 'give the space as settings by name, such as {"lr": {"type": "float", ...}}')
    if len(data) > MOST_SETTINGS:
        raise WrongSpace(
            "",
            Sentence(
                "a space has at most {most_settings} settings; this one has {data}",
                most_settings=MOST_SETTINGS,
                data=len(data),
            ),
        )
    settings = {name: _read_setting(_name(name), fields) for name, fields in data.items()}
    space = Space(tuple(_in_order(settings)))
    if not any(setting.varies for setting in space.settings):
        raise WrongSpace("", "no setting varies; give at least one a range or several choices")
    return space


def _name(name: Any) -> str:
    plain = isinstance(name, str) and name.replace("-", "_").replace(".", "_").isidentifier()
    if not plain or len(name) > 64:
        raise WrongSpace(str(name)[:40], "a setting's name has letters, digits, _, - and dots, such as lr")
    return str(name)


def _read_setting(name: str, fields: Any) -> Setting:
    if isinstance(fields, list):
        fields = {"type": "categorical", "choices": fields}
    elif not isinstance(fields, Mapping):
        fields = {"type": "fixed", "value": fields}
    kind = fields.get("type")
    if kind is None:
        raise WrongSpace(name, Sentence("give its type; types are {types}", types=", ".join(TYPES)))
    if kind not in TYPES:
        raise WrongSpace(
            name,
            Sentence(
                "there is no type {kind!r}; types are {types}", kind=str(kind)[:40], types=", ".join(TYPES)
            ),
        )
    allowed = {"type", "when"} | _FIELDS_OF[kind]
    if unknown := sorted(str(key) for key in set(fields) - allowed):
        raise WrongSpace(
            name,
            Sentence(
                "{unknown!r} does not belong to a {kind}; fields are {allowed}",
                unknown=unknown[0][:40],
                kind=kind,
                allowed=sorted(allowed),
            ),
        )
    when = _read_condition(name, fields.get("when"))
    if kind in {"float", "int"}:
        return _read_range(name, kind, fields, when)
    return Setting(name, kind, choices=_read_choices(name, kind, fields), when=when)


_FIELDS_OF: Mapping[str, set[str]] = {
    "float": {"low", "high", "log", "scale"},
    "int": {"low", "high", "log"},
    "categorical": {"choices"},
    "bool": set(),
    "fixed": {"value"},
}


def _read_range(name: str, kind: str, fields: Mapping[str, Any], when: Condition | None) -> Setting:
    low, high = (_read_limit(name, kind, fields, which) for which in ("low", "high"))
    log = fields.get("log", False)
    if not isinstance(log, bool):
        raise WrongSpace(name, "log is true or false")
    if low >= high:
        raise WrongSpace(
            name,
            Sentence(
                "the range from {low:g} to {high:g} is empty; low has to be below high", low=low, high=high
            ),
        )
    if log and low <= 0:
        raise WrongSpace(name, Sentence("a log range begins above 0, not at {low:g}", low=low))
    return Setting(name, kind, low, high, log, when=when, scale=_read_scale(name, fields.get("scale")))


def _read_scale(name: str, data: Any) -> Scale | None:
    if data is None:
        return None
    fields = data if isinstance(data, Mapping) else {}
    by, base, rule = fields.get("by", ""), fields.get("base", 0), fields.get("rule", "linear")
    known = not set(fields) - {"by", "base", "rule"} and isinstance(by, str) and rule in RULES
    number = isinstance(base, int | float) and not isinstance(base, bool)
    if not known or not number or not 0 < base < math.inf:
        raise WrongSpace(
            name,
            Sentence(
                "write its scale as {{by: batch-size, base: 32, rule: {rules}}}", rules=" or ".join(RULES)
            ),
        )
    return Scale(by, float(base), root=rule == "sqrt")


def _read_limit(name: str, kind: str, fields: Mapping[str, Any], which: str) -> float:
    limit = fields.get(which)
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not math.isfinite(limit):
        raise WrongSpace(
            name, Sentence("give low and high as numbers; {which} is {limit!r:.20}", which=which, limit=limit)
        )
    if abs(limit) > LARGEST_LIMIT:
        raise WrongSpace(name, Sentence("the limit {limit!r:.30} is too large", limit=limit))
    if kind == "int" and limit != int(limit):
        raise WrongSpace(
            name, Sentence("an int has whole limits, not {limit}; or give it the type float", limit=limit)
        )
    return float(limit)


def _read_choices(name: str, kind: str, fields: Mapping[str, Any]) -> tuple[Value, ...]:
    if kind == "bool":
        return (False, True)
    choices = fields.get("choices") if kind == "categorical" else [fields.get("value")]
    if not isinstance(choices, list) or not 1 <= len(choices) <= MOST_CHOICES:
        raise WrongSpace(
            name, Sentence("give 1 to {most_choices} choices as a list", most_choices=MOST_CHOICES)
        )
    for choice in choices:
        _check_value(name, choice)
    if len(set(choices)) < len(choices):  # 1, 1.0 and true are one choice
        raise WrongSpace(name, "a choice is there twice")
    return tuple(choices)


def _check_value(name: str, value: Any) -> None:
    if not isinstance(value, bool | int | float | str) or value != value or value in (math.inf, -math.inf):
        raise WrongSpace(
            name, Sentence("{value!r:.40} is no value; give a number, a text, true or false", value=value)
        )
    if isinstance(value, str) and ("\0" in value or len(value) > 500):
        raise WrongSpace(name, "a value has at most 500 characters and no NUL")


def _read_condition(name: str, data: Any) -> Condition | None:
    if data is None:
        return None
    if not isinstance(data, Mapping) or len(data) != 1:
        raise WrongSpace(name, 'give a condition as {"other setting": value}, or with a list of values')
    ((other, values),) = data.items()
    values = list(values) if isinstance(values, list | tuple) else [values]
    if not values:
        raise WrongSpace(name, "a condition needs at least one value")
    for value in values:
        _check_value(name, value)
    return Condition(str(other), tuple(values))


def _in_order(settings: Mapping[str, Setting]) -> Sequence[Setting]:
    """The settings, each after the one that its condition names."""
    done: dict[str, Setting] = {}
    waiting = dict(settings)
    for setting in settings.values():
        _check_condition(setting, settings)
        _check_scale(setting, settings)
    while waiting:
        ready = [one for one in waiting.values() if one.when is None or one.when.setting in done]
        if not ready:
            raise WrongSpace(next(iter(waiting)), "its conditions form a ring")
        for setting in ready:
            done[setting.name] = waiting.pop(setting.name)
    return list(done.values())


def _check_condition(setting: Setting, settings: Mapping[str, Setting]) -> None:
    if setting.when is None:
        return
    other = settings.get(setting.when.setting)
    if other is None:
        raise WrongSpace(
            setting.name,
            Sentence("its condition names {setting!r}, which is no setting", setting=setting.when.setting),
        )
    if other.is_number:
        raise WrongSpace(
            setting.name,
            Sentence("its condition names {other}, which is a range; name choices", other=other.name),
        )
    for value in setting.when.values:
        if value not in other.choices:
            known = ", ".join(map(str, other.choices[:10]))
            raise WrongSpace(
                setting.name,
                Sentence(
                    "{other} is never {value!r:.40}; its choices are {known}",
                    other=other.name,
                    value=value,
                    known=known,
                ),
            )


def _check_scale(setting: Setting, settings: Mapping[str, Setting]) -> None:
    if setting.scale is None:
        return
    other = settings.get(setting.scale.setting)
    if other is None or other is setting:
        raise WrongSpace(
            setting.name,
            Sentence(
                "it follows {setting!r:.40}, which is no other setting of the space",
                setting=setting.scale.setting,
            ),
        )
    least = other.low if other.is_number else min(map(_size, other.choices))
    if least <= 0:
        raise WrongSpace(
            setting.name,
            Sentence("it follows {other}, whose values have to be numbers above 0", other=other.name),
        )


def _size(value: Value) -> float:
    """A number that a setting can be divided by; 0 for everything else."""
    return 0.0 if isinstance(value, bool | str) else float(value)
