"""The file berth.toml of a project."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from berth.cli.submitting import choose_code, with_project
from berth.shared.arguments import WrongUse
from berth.shared.project_file import NAME, read_project
from orchestrator.jobs.submission.intake import parse_spec
from tests.spec.every_field import OTHER_STARTS, every_field

PROJECT = """
entrypoint = "src/train.py"
args = ["--lr", "3e-4"]
gpus = 2
not_before = 2030-01-01T07:00:00Z

[env]
SEED = "1"
MODE = "fast"
"""


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).write_text(PROJECT)
    (tmp_path / "other.py").write_text("")
    return tmp_path


def test_file_holds_the_fields_of_rest():
    spec = read_project(Path())

    assert parse_spec(dict(spec)).entrypoint == "src/train.py"
    assert (spec["gpus"], spec["env"]) == (2, {"SEED": "1", "MODE": "fast"})


def test_options_win_over_the_file_and_variables_are_joined():
    spec = with_project(None, {"gpus": 4, "env": {"SEED": "7"}})

    assert (spec["gpus"], spec["args"], spec["env"]) == (4, ["--lr", "3e-4"], {"SEED": "7", "MODE": "fast"})
    assert choose_code(None, spec, ["--lr", "1"]) == (".", {**spec, "args": ["--lr", "1"]})


@pytest.mark.parametrize(
    ("code", "given", "kept"),
    [
        (None, {}, {"entrypoint"}),
        (".", {}, {"entrypoint"}),
        ("other.py", {}, set()),
        (None, {"module": "pkg.train"}, {"module"}),
        (None, {"command": ["make"]}, {"command"}),
    ],
)
def test_start_on_the_command_line_takes_the_place_of_that_in_the_file(code, given, kept):
    spec = with_project(code, given)

    assert {"entrypoint", *OTHER_STARTS} & set(spec) == kept
    assert spec["gpus"] == 2


def test_named_folder_has_its_own_file(project):
    (project / "sub").mkdir()

    assert with_project("sub", {}) == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("gpus = 2\n\ngpu_s = 1\n", "line 3: there is no field 'gpu_s'. Was 'gpus' meant?"),
        ("[enviroment]\nA = '1'\n", "line 1: there is no field 'enviroment'."),
        ("source = 1\n", "line 1: there is no field 'source'."),
        ("gpus = \n", "is no TOML: Invalid value (at line 1, column 8)"),
    ],
)
def test_unknown_key_is_refused_with_its_line_and_the_nearest_name(project, text, sentence):
    (project / NAME).write_text(text)

    with pytest.raises(WrongUse, match=re.escape(sentence)):
        read_project(project)


def test_every_field_can_stand_in_the_file(project):
    fields: dict[str, Any] = every_field()
    (project / NAME).write_text("\n".join(f"{name} = {_toml(value)}" for name, value in fields.items()))

    assert parse_spec(dict(read_project(project))) == parse_spec(fields)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def test_list_of_packages_that_the_file_names_goes_with_a_script_that_goes_alone(project):
    (project / NAME).write_text('environment = "gpu.txt"\n')
    (project / "gpu.txt").write_text("tinylib\n")

    assert with_project("train.py", {})["environment"] == {"files": {"gpu.txt": "tinylib\n"}}
    assert with_project("train.py", {"environment": "berth"})["environment"] == "berth"
    assert with_project(".", {})["environment"] == "gpu.txt"
