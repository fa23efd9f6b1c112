"""Spaces: what can be searched, in each way of writing it, and the places of settings in the cube."""

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.sweeps.core.flags import read_flags
from orchestrator.sweeps.core.reading import read_space
from orchestrator.sweeps.core.space import Space, WrongSpace

names = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
values = st.one_of(st.integers(-50, 50), st.sampled_from(["adam", "sgd", "x y", "1e-3"]), st.booleans())
choices = st.lists(values, min_size=1, max_size=5, unique=True)


@st.composite
def ranges(draw):
    log = draw(st.booleans())
    low = draw(st.floats(1e-9, 1e3) if log else st.floats(-1e3, 1e3))
    if draw(st.booleans()):
        low = max(1, int(low)) if log else int(low)
        return {"type": "int", "low": low, "high": low + draw(st.integers(1, 1000)), "log": log}
    return {"type": "float", "low": low, "high": low + draw(st.floats(0.001, 1e4)), "log": log}


@st.composite
def spaces(draw):
    """Some settings, a choice among them, and some that exist only where that choice has one of its values."""
    settings = draw(
        st.dictionaries(names, st.one_of(ranges(), choices, st.just({"type": "bool"})), max_size=4)
    )
    settings["parent"] = draw(choices.filter(lambda values: len(values) > 1))
    for name in draw(st.lists(names.map("c_{}".format), max_size=3, unique=True)):
        settings[name] = draw(ranges()) | {"when": {"parent": [draw(st.sampled_from(settings["parent"]))]}}
    return read_space(settings)


@given(spaces(), st.data())
def test_each_place_of_the_cube_is_a_point_of_the_space(space: Space, data):
    place = np.array(data.draw(st.lists(st.floats(0, 1), min_size=space.width, max_size=space.width)))

    settings = space.at(place)

    for setting in space.settings:
        assert (setting.name in settings) == setting.exists(settings)
    for setting in (one for one in space.settings if one.name in settings):
        value = settings[setting.name]
        if setting.is_number:
            assert setting.low <= float(value) <= setting.high
        else:
            assert value in setting.choices


@given(spaces(), st.data())
def test_settings_come_back_from_their_place(space: Space, data):
    place = np.array(data.draw(st.lists(st.floats(0, 1), min_size=space.width, max_size=space.width)))
    settings = space.at(place)

    again = space.at(space.place(settings))

    assert again.keys() == settings.keys()
    for name, value in settings.items():
        assert again[name] == (
            pytest.approx(value, rel=1e-6, abs=1e-6) if isinstance(value, float) else value
        )
        assert type(again[name]) is type(value)


@given(spaces(), st.data())
def test_snapped_places_are_those_of_their_settings(space: Space, data):
    place = np.array([data.draw(st.lists(st.floats(0, 1), min_size=space.width, max_size=space.width))])

    snapped = space.snap(place)

    assert snapped[0] == pytest.approx(space.place(space.at(place[0])), abs=1e-6)


@given(spaces())
def test_a_space_comes_back_from_its_json(space: Space):
    assert read_space(json.loads(json.dumps(space.to_json()))) == space


@given(st.text(max_size=40))
def test_any_text_of_a_flag_is_a_setting_or_refused_as_one(text):
    space = None
    with contextlib.suppress(WrongSpace):
        space = read_space(read_flags([f"x={text}", "y=0..1"]))

    assert space is None or {setting.name for setting in space.settings} == {"x", "y"}


@pytest.mark.parametrize(
    ("flag", "fields"),
    [
        ("lr=log:1e-5..1e-1", {"type": "float", "low": 1e-5, "high": 1e-1, "log": True}),
        ("p=0..0.5", {"type": "float", "low": 0, "high": 0.5}),
        ("layers=int:2..8", {"type": "int", "low": 2, "high": 8}),
        ("width=int-log:32..1024", {"type": "int", "low": 32, "high": 1024, "log": True}),
        ("wd=0,0.01,0.1", {"type": "categorical", "choices": [0, 0.01, 0.1]}),
        ("optimizer=adam,sgd", {"type": "categorical", "choices": ["adam", "sgd"]}),
        ("amp=bool", {"type": "bool"}),
        ("epochs=20", {"type": "fixed", "value": 20}),
        (
            "m=0..0.99@optimizer=sgd",
            {"type": "float", "low": 0, "high": 0.99, "when": {"optimizer": ["sgd"]}},
        ),
        ("b=1,2@o=a|b", {"type": "categorical", "choices": [1, 2], "when": {"o": ["a", "b"]}}),
    ],
)
def test_short_flags_are_settings(flag, fields):
    assert read_flags([flag]) == {flag.partition("=")[0]: fields}


@pytest.mark.parametrize(
    ("space", "names_setting", "part"),
    [
        ({}, "", "settings by name"),
        ([], "", "settings by name"),
        ({"lr": {"type": "flot", "low": 0, "high": 1}}, "lr", "no type 'flot'"),
        ({"lr": {"type": "float", "low": 1, "high": 1}}, "lr", "is empty"),
        ({"lr": {"type": "float", "low": 2, "high": 1}}, "lr", "is empty"),
        ({"lr": {"type": "float", "low": 0, "high": 1, "log": True}}, "lr", "begins above 0"),
        ({"lr": {"type": "float", "low": 0}}, "lr", "high is None"),
        ({"lr": {"type": "float", "low": 0, "high": float("inf")}}, "lr", "high is inf"),
        ({"n": {"type": "int", "low": 0.5, "high": 3}}, "n", "whole limits"),
        ({"n": {"type": "int", "low": 0, "hihg": 3}}, "n", "'hihg'"),
        ({"o": []}, "o", "1 to 1000 choices"),
        ({"o": ["a", "a"]}, "o", "twice"),
        ({"o": [None]}, "o", "no value"),
        ({"o": "adam"}, "", "no setting varies"),
        ({"1x": [1, 2]}, "1x", "letters, digits"),
        ({"a": [1, 2], "b": {"type": "bool", "when": {"c": 1}}}, "b", "no setting"),
        ({"a": [1, 2], "b": {"type": "bool", "when": {"a": 3}}}, "b", "its choices are 1, 2"),
        (
            {"a": {"type": "float", "low": 0, "high": 1}, "b": {"type": "bool", "when": {"a": 1}}},
            "b",
            "a range",
        ),
        (
            {"a": {"type": "bool", "when": {"b": True}}, "b": {"type": "bool", "when": {"a": True}}},
            "a",
            "form a ring",
        ),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused_with_its_setting(space, names_setting, part):
    with pytest.raises(WrongSpace) as error:
        read_space(space)
    assert error.value.setting == names_setting
    assert part in str(error.value)


@pytest.mark.parametrize(
    "flags", [["lr"], ["=1"], ["lr="], ["lr=1", "lr=2"], ["a=int:x..y"], ["a=1..b"], ["a=1,2@b"]]
)
def test_a_wrong_flag_is_refused(flags):
    with pytest.raises(WrongSpace):
        read_flags(flags)


def test_a_grid_has_each_point_once_and_drops_settings_that_do_not_exist():
    space = read_space(read_flags(["opt=adam,sgd", "m=0.5,0.9@opt=sgd"]))

    assert list(space.grid()) == [{"opt": "adam"}, {"opt": "sgd", "m": 0.5}, {"opt": "sgd", "m": 0.9}]
    assert space.size() == 3


@given(spaces())
def test_the_size_of_a_space_counts_its_points(space: Space):
    size = space.size()

    if size is not None and size <= 5000:
        assert size == sum(1 for _ in space.points())
