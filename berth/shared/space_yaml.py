"""Reads the space of a sweep from YAML, as people mean it: 1e-5 is a number, a date is a text."""

import re
from typing import Any

import yaml

MOST_VALUES = 100_000
_FLOAT = "tag:yaml.org,2002:float"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
# YAML 1.1 wants a dot and a sign: it takes 1e-5 and 1.0e5 for texts.
_POWER_OF_TEN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$", re.ASCII)


class _Loader(yaml.SafeLoader):
    """YAML's plain values, with the numbers of JSON and Python."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(_FLOAT, _POWER_OF_TEN, list("-+.0123456789"))


def read_yaml(text: str) -> Any:
    """The value of a YAML text.

    Raises:
        yaml.YAMLError: the text is no YAML, or its aliases make too many values.
    """
    try:
        value = yaml.load(text, _Loader)  # noqa: S506  (a subclass of the safe one)
    except (ValueError, LookupError, AttributeError, RecursionError) as error:  # such as !!int x
        raise yaml.YAMLError(f"a value cannot be read ({error})") from error
    _check_size(value)
    return value


def _check_size(value: Any) -> None:
    """Refuse aliases that contain each other, or that multiply: a few lines of them would fill the memory."""
    waiting, count = [value], 0
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list | tuple | set):
            waiting += each
        count += 1
        if count + len(waiting) > MOST_VALUES:
            raise yaml.YAMLError(f"it has more than {MOST_VALUES:,} values")
