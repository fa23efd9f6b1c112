"""The space of a sweep: which settings vary, between which limits, and when a setting exists at all."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from orchestrator.exceptions import Sentence

Value = bool | int | float | str
Settings = Mapping[str, Value]
SettingJson: TypeAlias = dict[str, Any]  # its type and limits, as people write them
SpaceJson: TypeAlias = dict[str, SettingJson]  # by name
Vector = NDArray[np.float64]

MOST_GRID_POINTS = 10_000
GRID_POINTS_OF_A_RANGE = 5
MOST_COUNTED = 1_000_000
INACTIVE = 0.5  # where a setting that does not exist lies in the cube


class WrongSpace(ValueError):
    """A space that cannot be searched; ``setting`` is the name of the wrong setting, empty for the whole space."""

    def __init__(self, setting: str, sentence: str) -> None:
        self.sentence = Sentence("{setting}: {why}", setting=setting, why=sentence) if setting else sentence
        super().__init__(self.sentence)
        self.setting, self.why = setting, sentence


@dataclass(frozen=True, slots=True)
class Condition:
    """A setting exists only where another setting has one of these values."""

    setting: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Scale:
    """A number is searched for one value of another setting, and handed over in proportion to that setting.

    Learning rates follow the batch so: linearly (Goyal et al. 2017, section 2.1), or by its square root
    (Krizhevsky 2014, section 5).
    """

    setting: str
    base: float  # the value of the other setting at which the number is as searched
    root: bool = False

    def factor(self, settings: Settings) -> float:
        """What the number is multiplied by; 1 where the other setting does not exist."""
        other = settings.get(self.setting)
        if not isinstance(other, int | float):
            return 1.0
        ratio = other / self.base
        return math.sqrt(ratio) if self.root else ratio


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting; ``low`` and ``high`` belong to numbers, ``choices`` to the other types."""

    name: str
    type: str
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    choices: tuple[Value, ...] = ()
    when: Condition | None = None
    scale: Scale | None = None

    @property
    def is_number(self) -> bool:
        return self.type in {"float", "int"}

    @property
    def varies(self) -> bool:
        return len(self.choices) > 1 or (self.is_number and self.high > self.low)

    @property
    def width(self) -> int:
        """The number of columns in the cube: one for a number or two choices, else one for each choice."""
        if not self.varies:
            return 0
        return 1 if self.is_number or len(self.choices) == 2 else len(self.choices)

    def contains(self, value: Value) -> bool:
        """Whether a value lies in the range or among the choices."""
        if self.is_number:
            return isinstance(value, int | float) and self.low <= value <= self.high
        return value in self.choices

    def exists(self, settings: Settings) -> bool:
        return self.when is None or settings.get(self.when.setting) in self.when.values

    def value_at(self, columns: Vector) -> Value:
        """The value at a place of the cube."""
        if self.is_number:
            return self._number_at(float(columns[0])) if self.width else self._cast(self.low)
        if not self.width:
            return self.choices[0]
        if self.width == 1:
            return self.choices[int(columns[0] >= 0.5)]
        return self.choices[int(np.argmax(columns))]

    def place_of(self, value: Value) -> list[float]:
        """The columns of a value; the inverse of ``value_at`` up to rounding."""
        if not self.width:
            return []
        if self.is_number:
            low, high = self._limits()
            number = math.log(float(value)) if self.log else float(value)
            return [min(1.0, max(0.0, (number - low) / (high - low)))]
        index = self.choices.index(value)
        return [float(index)] if self.width == 1 else [float(index == other) for other in range(self.width)]

    def snap(self, columns: Vector) -> Vector:
        """Columns moved to where the values at their places lie; shape ``(places, width)``."""
        if not self.width or self.type == "float":
            return columns
        if self.is_number:
            low, high = self._limits()
            numbers = low + columns * (high - low)
            whole = np.clip(np.round(np.exp(numbers) if self.log else numbers), self.low, self.high)
            return np.asarray(((np.log(whole) if self.log else whole) - low) / (high - low), np.float64)
        if self.width == 1:
            return (columns >= 0.5).astype(np.float64)
        return np.asarray(np.eye(self.width)[columns.argmax(1)], np.float64)

    def chosen(self, columns: Vector) -> NDArray[np.intp]:
        """The indices of the choices at these places; shape ``(places,)``."""
        if self.width > 1:
            return np.asarray(columns.argmax(1), np.intp)
        first = np.zeros(len(columns), np.intp)
        return first if not self.width else (columns[:, 0] >= 0.5).astype(np.intp)

    def _limits(self) -> tuple[float, float]:
        low, high = (self.low - 0.5, self.high + 0.5) if self.type == "int" else (self.low, self.high)
        if not self.log:
            return low, high
        return math.log(max(low, 0.5) if self.type == "int" else low), math.log(high)

    def _number_at(self, place: float) -> Value:
        low, high = self._limits()
        number = low + place * (high - low)
        return self._cast(math.exp(number) if self.log else number)

    def _cast(self, number: float) -> Value:
        if self.type == "int":
            return int(min(self.high, max(self.low, round(number))))
        return min(self.high, max(self.low, number))

    def all_values(self) -> Sequence[Value]:
        """Every value of a setting that is no float."""
        return self.choices or range(int(self.low), int(self.high) + 1)

    def grid(self) -> list[Value]:
        """The values that a grid tries: every choice and every small integer, five of a longer range."""
        if not self.is_number:
            return list(self.choices)
        if self.type == "int" and self.high - self.low < GRID_POINTS_OF_A_RANGE:
            return [int(self.low) + step for step in range(int(self.high - self.low) + 1)]
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        places = [low + (high - low) * step / (GRID_POINTS_OF_A_RANGE - 1) for step in range(5)]
        values = [self._cast(math.exp(place) if self.log else place) for place in places]
        return list(dict.fromkeys(values))


@dataclass(frozen=True, slots=True)
class Space:
    """All settings of a sweep; one that has a condition comes after the setting that it depends on."""

    settings: tuple[Setting, ...]

    @property
    def width(self) -> int:
        return sum(setting.width for setting in self.settings)

    def at(self, place: Vector) -> dict[str, Value]:
        """The settings at a place of the cube."""
        settings: dict[str, Value] = {}
        column = 0
        for setting in self.settings:
            if setting.exists(settings):
                settings[setting.name] = setting.value_at(place[column : column + setting.width])
            column += setting.width
        return settings

    def handed_over(self, settings: Settings) -> dict[str, Value]:
        """The settings as the script gets them: numbers with a scale in proportion to the setting that they follow."""
        return {
            one.name: _scaled(settings[one.name], one.scale.factor(settings))
            if one.scale
            else settings[one.name]
            for one in self.settings
            if one.name in settings
        }

    def place(self, settings: Settings) -> Vector:
        """The place of settings in the cube; settings that do not exist lie in its middle."""
        columns: list[float] = []
        for setting in self.settings:
            there = setting.name in settings
            columns += setting.place_of(settings[setting.name]) if there else [INACTIVE] * setting.width
        return np.array(columns, np.float64)

    def contains(self, settings: Settings) -> bool:
        """Whether these settings are a point of the space."""
        wanted = {one.name for one in self.settings if one.exists(settings)}
        return settings.keys() == wanted and all(
            one.contains(settings[one.name]) for one in self.settings if one.name in wanted
        )

    def snap(self, places: Vector) -> Vector:
        """Places of the cube moved to where their settings lie; shape ``(places, width)``."""
        places = np.array(places, np.float64)
        column = 0
        missing: dict[str, NDArray[np.bool_]] = {}
        columns_of: dict[str, slice] = {}
        for setting in self.settings:
            columns_of[setting.name] = here = slice(column, column + setting.width)
            column += setting.width
            places[:, here] = setting.snap(places[:, here])
            missing[setting.name] = gone = np.zeros(len(places), np.bool_)
            if setting.when is not None:
                parent = next(one for one in self.settings if one.name == setting.when.setting)
                chosen = parent.chosen(places[:, columns_of[parent.name]])
                wanted = [parent.choices.index(value) for value in setting.when.values]
                gone |= missing[parent.name] | ~np.isin(chosen, wanted)
                places[gone, here] = INACTIVE
        return places

    def size(self) -> int | None:
        """The number of different points; None where a float makes them countless, or beyond a million."""
        if any(setting.type == "float" for setting in self.settings):
            return None
        if math.prod(self._count(setting) for setting in self.settings) > MOST_COUNTED:
            return None
        return self._size_of(0, {})

    def _count(self, setting: Setting) -> int:
        return len(setting.choices) or int(setting.high - setting.low) + 1

    def _size_of(self, first: int, settings: dict[str, Value]) -> int:
        """The number of points that begin with these settings; settings that nothing depends on only multiply."""
        parents = {setting.when.setting for setting in self.settings if setting.when}
        size = 1
        for index, setting in enumerate(self.settings[first:], first):
            if not setting.exists(settings):
                continue
            if setting.name not in parents:
                size *= self._count(setting)
                continue
            return size * self._size_below(index, settings)
        return size

    def _size_below(self, index: int, settings: dict[str, Value]) -> int:
        """The number of points from a setting on that others depend on.

        The values that no condition names all have the same points below them, so one of them is counted for all.
        """
        setting = self.settings[index]
        conditions = [one.when for one in self.settings if one.when and one.when.setting == setting.name]
        named = {value for condition in conditions for value in condition.values}
        others = [value for value in setting.choices if value not in named]
        counted = [(value, 1) for value in setting.choices if value in named]
        counted += [(others[0], len(others))] if others else []
        return sum(
            times * self._size_of(index + 1, {**settings, setting.name: value}) for value, times in counted
        )

    def points(self) -> Iterator[dict[str, Value]]:
        """All points of a space without floats, in the order of its settings."""
        return self._points_of(Setting.all_values, 0, {})

    def _points_of(
        self, values: Callable[[Setting], Iterable[Value]], index: int, settings: dict[str, Value]
    ) -> Iterator[dict[str, Value]]:
        if index == len(self.settings):
            yield settings
            return
        setting = self.settings[index]
        if not setting.exists(settings):
            yield from self._points_of(values, index + 1, settings)
            return
        for value in values(setting):
            yield from self._points_of(values, index + 1, {**settings, setting.name: value})

    def grid_size(self) -> int:
        """The number of points of the grid before conditions drop some of them."""
        return math.prod(len(setting.grid()) for setting in self.settings)

    def grid(self) -> Iterator[dict[str, Value]]:
        """All points of the grid, each once, the last setting changing fastest."""
        return self._points_of(Setting.grid, 0, {})

    def fits_grid(self, most: int) -> bool:
        """Whether the grid has at most ``most`` points; those that conditions drop do not count."""
        return self.grid_size() <= most or sum(1 for _ in islice(self.grid(), most + 1)) <= most

    def to_json(self) -> SpaceJson:
        """The space as ``reading.read_space`` reads it."""
        return {setting.name: _setting_json(setting) for setting in self.settings}


def _scaled(value: Value, factor: float) -> Value:
    return float(f"{value * factor:.6g}") if isinstance(value, int | float) else value


def _setting_json(setting: Setting) -> SettingJson:
    fields: SettingJson = {"type": setting.type}
    if setting.is_number:
        cast = int if setting.type == "int" else float
        fields |= {"low": cast(setting.low), "high": cast(setting.high)}
        fields |= {"log": True} if setting.log else {}
        if setting.scale is not None:
            fields["scale"] = {
                "by": setting.scale.setting,
                "base": setting.scale.base,
                "rule": "sqrt" if setting.scale.root else "linear",
            }
    elif setting.type == "fixed":
        fields["value"] = setting.choices[0]
    elif setting.type == "categorical":
        fields["choices"] = list(setting.choices)
    if setting.when is not None:
        fields["when"] = {setting.when.setting: list(setting.when.values)}
    return fields
