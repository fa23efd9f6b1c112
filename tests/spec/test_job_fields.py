"""The table of fields and everything that has to agree with it."""

import re
from typing import get_type_hints

import pytest
from pydantic import TypeAdapter

from berth import client
from berth.shared.job_fields import BY_NAME, CHANGEABLE, FIELDS
from orchestrator.api.resources.schemas import JobChanges, JobOut
from orchestrator.exceptions import Malformed
from orchestrator.jobs.submission.intake import parse_spec
from orchestrator.spec.job_spec import JobSpec
from orchestrator.spec.reference import job_fields_page
from tests.spec.every_field import DEFAULTS, OTHER_STARTS, every_field
from tests.system.server import REPOSITORY

EACH = pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)


def test_table_has_the_fields_of_a_job_in_their_order():
    assert [field.name for field in FIELDS] == list(JobSpec.model_fields)


def test_every_field_differs_from_its_default_in_the_job_that_tests_clone():
    job = JobSpec.model_validate(every_field()).model_dump(mode="json")

    assert [name for name in every_field() if job[name] == DEFAULTS[name]] == []


@EACH
def test_example_is_a_valid_value_for_server_and_client(field):
    hints = get_type_hints(client.Spec)

    needs = {"min_gpus": {"gpus": 2}, "gpu_memory_limit_gib": {"gpu_memory_gib": 20}}
    assert JobSpec.model_validate({field.name: field.example, **needs.get(field.name, {})})
    TypeAdapter(hints[field.name]).validate_python(field.example, strict=True)


@EACH
def test_help_is_a_short_phrase_in_sentence_case(field):
    for text in filter(None, (field.help, field.option_help, field.label)):
        assert len(text.split()) <= 10
        assert text[0].isupper()
        assert not text.endswith(".")


def test_client_and_answers_name_every_field():
    assert set(client.Spec.__annotations__) == set(BY_NAME)
    assert set(BY_NAME) - set(JobOut.model_fields) == {"source"}


def test_fields_that_can_change_are_those_that_rest_takes():
    assert set(JobChanges.model_fields) == CHANGEABLE


@pytest.mark.parametrize("model", [JobSpec, JobOut, JobChanges])
def test_schema_describes_every_field_with_an_example(model):
    properties = model.model_json_schema()["properties"]

    described = {name for name, one in properties.items() if {"title", "description", "examples"} <= set(one)}
    assert described == set(properties) & set(BY_NAME)


def test_options_are_spelt_once():
    options = [word for field in FIELDS for word in re.split("[ /]", field.option) if word]

    assert len(options) == len(set(options))


def test_reference_is_the_one_made_from_the_table():
    page = REPOSITORY / "docs/reference/job-fields.md"

    assert page.read_text() == job_fields_page(), (
        "write it again: python -m orchestrator.spec.reference > docs/reference/job-fields.md"
    )


@pytest.mark.parametrize("name", sorted(OTHER_STARTS))
def test_job_that_starts_a_module_or_a_command_has_no_script(name):
    job = JobSpec.model_validate({name: BY_NAME[name].example})

    assert job.entrypoint is None
    assert JobSpec.model_validate(job.model_dump(mode="json")) == job


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"module": "fit", "command": ["bash", "fit.sh"]}, "command"),
        ({"entrypoint": "fit.py", "module": "fit"}, "module"),
        ({"entrypoint": None}, "entrypoint"),
        ({"module": "src/fit.py"}, "module"),
        ({"module": ""}, "module"),
        ({"command": [""]}, "command"),
        ({"command": "bash fit.sh"}, "command"),
        ({"kind": "model", "module": "fit"}, "module"),
    ],
)
def test_start_that_is_none_or_two_is_refused_with_its_field(fields, name):
    with pytest.raises(Malformed) as error:
        parse_spec(fields)

    assert list(error.value.fields) == [name]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"entrypoint": "src/fit.py"}, "fit"),
        ({"module": "pkg.train"}, "train"),
        ({"command": ["accelerate", "launch", "train.py", "--lr", "0.1"]}, "train"),
        ({"command": ["bash", "-c", "true"]}, "true"),
        ({"command": ["bash", "-lc", "cd src && CUDA_LAUNCH_BLOCKING=1 python fit.py --lr 1; true"]}, "fit"),
        ({"command": ["/bin/sh", "-ec", "python -m pkg.train"]}, "train"),
        ({"command": ["bash", "-c", ""]}, "bash"),
        ({"command": ["bash", "-c"]}, "bash"),
        ({"command": ["bash", "run.sh"]}, "run"),
        ({"command": ["python", "-m", "pkg.train"]}, "train"),
        ({"command": ["make", "train"]}, "make"),
        ({"command": ["/opt/bin/tool"]}, "tool"),
    ],
)
def test_job_without_a_name_is_called_by_what_it_starts(fields, name):
    assert JobSpec.model_validate(fields).started_as == name
