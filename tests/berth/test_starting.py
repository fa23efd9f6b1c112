"""What ``berth run`` starts, before it asks any server."""

from pathlib import Path
from typing import Any, cast

import pytest

from berth.arguments import WrongUse
from berth.cli.job_options import read_options
from berth.cli.submitting import choose_code
from berth.client import Berth, Spec
from berth.job_fields import started_words

NOBODY = cast(Berth, None)


@pytest.fixture(autouse=True)
def _in_a_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("code", "given", "words", "chosen"),
    [
        ("train.py", {}, ["--lr", "1"], ("train.py", {"args": ["--lr", "1"]})),
        (None, {"module": "pkg.train"}, ["--lr", "1"], (".", {"module": "pkg.train", "args": ["--lr", "1"]})),
        ("src", {"module": "fit"}, [], ("src", {"module": "fit"})),
        (None, {}, ["accelerate", "launch"], (".", {"command": ["accelerate", "launch"]})),
        (None, {"command": ["make"]}, ["all"], (".", {"command": ["make"], "args": ["all"]})),
        (".", {}, ["--lr", "1"], (".", {"args": ["--lr", "1"]})),
    ],
)
def test_words_after_the_dashes_are_arguments_or_else_the_command(code, given, words, chosen):
    assert choose_code(code, cast(Spec, given), words) == chosen


def test_nothing_to_run_is_answered_with_the_three_ways():
    with pytest.raises(
        WrongUse, match=r"berth run train\.py, berth run -m pkg\.train, or berth run -- accel"
    ):
        choose_code(None, {}, [])


def test_home_folder_is_not_uploaded_unless_it_is_named(monkeypatch):
    monkeypatch.setenv("HOME", str(Path.cwd()))

    with pytest.raises(WrongUse, match=r"The whole of .* would be uploaded"):
        choose_code(None, {}, ["python", "train.py"])
    assert choose_code(".", {}, [])[0] == "."


@pytest.mark.parametrize(
    ("given", "spec"),
    [
        ({"module": ["pkg.train"]}, {"module": "pkg.train"}),
        ({"module": ["40"]}, {"gpu_memory_gib": 40.0}),
        ({"module": ["40", "pkg.train"]}, {"module": "pkg.train", "gpu_memory_gib": 40.0}),
        ({"module": ["fit"], "gpu_memory_gib": 0.5}, {"module": "fit", "gpu_memory_gib": 0.5}),
        (
            {"command": "accelerate launch 'my train.py'"},
            {"command": ["accelerate", "launch", "my train.py"]},
        ),
    ],
)
def test_m_names_a_module_and_with_a_number_memory(given: dict[str, Any], spec):
    assert read_options(NOBODY, given) == spec


@pytest.mark.parametrize("given", [{"module": ["a", "b"]}, {"module": ["4"], "gpu_memory_gib": 2.0}])
def test_two_modules_or_amounts_are_refused(given):
    with pytest.raises(WrongUse, match="-m was given more than once"):
        read_options(NOBODY, given)


def test_started_words_are_those_of_a_command_line():
    assert started_words({"entrypoint": "a.py", "args": ["-v"]}) == ["a.py", "-v"]
    assert started_words({"entrypoint": None, "module": "p.a", "args": []}) == ["-m", "p.a"]
    assert started_words({"command": ["make", "all"], "args": ["x"]}) == ["make", "all", "x"]
