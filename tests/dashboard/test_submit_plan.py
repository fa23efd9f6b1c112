"""The plan on the submit page: what a job would lead to, while its form is filled."""

import shlex

import pytest
from django.urls import reverse

from berth.shared.command_lines import command_line
from berth.shared.field import Json
from dashboard.parts import forms
from orchestrator.models import Device, Job, JobState
from tests.dashboard.markup import html_of


@pytest.fixture
def ask(home, reader, ada, make_device):
    """The plan for a form filled by ada, on a server of two devices."""
    for index in range(2):
        make_device(index)
    browser = reader(ada)

    def post(**fields: str) -> str:
        answer = browser.post(reverse("submit-plan"), {"gpus": "1", "pool": "default", **fields})
        assert answer.status_code == 200
        return str(html_of(answer))

    return post


def test_the_page_comes_with_the_plan_of_an_empty_form(home, reader, ada, make_device):
    make_device(0)

    page = html_of(reader(ada).get(reverse("submit")))

    assert "It would start at once in pool default.</strong> On simulated GPU 0." in page
    assert "berth run train.py" in page


def test_a_plan_submits_nothing_and_teaches_the_command(ask):
    shown = ask(gpus="2", args="--lr '3e-4 x'", time_limit_h="1.5", file_name="fit.py")

    assert not Job.objects.exists()
    assert "berth run -g 2 --time-limit 90m fit.py -- --lr &#x27;3e-4 x&#x27;" in shown


def test_what_would_start_it_sooner_is_one_click_away(ask, make_attempt):
    make_attempt(devices=[Device.objects.first()])

    shown = ask(gpus="2")

    assert "Waits for" in shown
    assert 'data-use="gpus" data-value="1"' in shown


def test_earlier_runs_say_when_it_is_done_and_other_numbers_are_one_click_away(ask, make_job):
    for gpus, seconds in ((1, 3_600), (2, 1_800)):
        for _ in range(3):
            earlier = {"gpus": gpus, "entrypoint": "fit.py"}
            make_job(state=JobState.SUCCEEDED, seconds_run=float(seconds), spec=earlier)

    shown = ask(file_name="fit.py")

    assert "Done in 57 min to 1 h 3 min, by your 3 earlier runs of fit.py with these arguments." in shown
    assert "2 devices: starts now, done in 28 to 32 min, runs 2.0 times as fast, <strong>the soonest" in shown
    assert 'data-use="gpus" data-value="2"' in shown
    assert "no run like it on 1 device has succeeded yet" in ask(file_name="other.py")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpus": "many"}, "Devices: "),
        ({"gpus": "3"}, "Devices: "),
        ({"pool": "nowhere"}, "Pool: "),
        ({"time_limit_h": "-1"}, "Time limit, hours: "),
        ({"args": "'"}, "Arguments: A quotation mark is not closed"),
        ({"name": "x" * 3_000_000}, "Name: "),
    ],
)
def test_b28_b31_what_is_wrong_is_said_field_by_field_before_it_is_submitted(ask, fields, said):
    assert said in ask(**fields)


def test_the_command_says_all_that_the_form_says():
    job: dict[str, Json] = {
        "gpus": 1, "priority": 50, "gpu_memory_gib": 20.0, "datasets": ["words@1"], "env": {"A": "b c"},
        "depends_on": ["8c2f01d4", {"job": "77b0e3aa", "when": "any"}], "tags": ["paper"], "preemptible": True,
        "checkpoint_glob": "out/*.pt", "grace_period_s": 45.0,
        "resume_args": ["--resume", "{checkpoint}"], "entrypoint": "src/train.py",
    }  # fmt: skip

    assert shlex.split(command_line(job, forms.DEFAULTS, "src/train.py")) == [
        "berth", "run", "--resume-args", "--resume '{checkpoint}'", "--data", "words@1", "--memory", "20",
        "--env", "A=b c", "--tag", "paper", "--after", "8c2f01d4", "--after-any", "77b0e3aa",
        "--grace-period", "45s", "--preemptible", "--checkpoint-glob", "out/*.pt",
        "src/train.py",
    ]  # fmt: skip
