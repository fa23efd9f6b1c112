"""Sweeps that cannot work, over REST: each is answered with what is wrong, where, and what to do."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from django.test import Client

from orchestrator.models import Device, ExitKind, Job, Sweep, SweepTrial
from orchestrator.people import tokens
from orchestrator.sweeps.core.flags import read_flags
from orchestrator.sweeps.core.reading import read_space
from orchestrator.sweeps.history_rows import ignores_settings
from tests.sweeps.test_controller import BODY, Trials

Answer = tuple[int, dict[str, Any]]
THOUSAND = list(range(1000))


@pytest.fixture
def send(home, ada, make_device) -> Callable[..., Answer]:
    """Send a request as ada: ``send("POST", "/sweeps", body)`` answers status and JSON."""
    for index in range(4):
        make_device(index)
    client = Client(headers={"Authorization": f"Token {tokens.issue(ada, name='test', scope='write')[1]}"})

    def ask(method: str, path: str, body: Any = None) -> Answer:
        data = b"" if body is None else orjson.dumps(body)
        answer = client.generic(method, f"/api/v1{path}", data, content_type="application/json")
        return answer.status_code, answer.json()

    return ask


@pytest.fixture
def begin(send, home) -> Callable[..., Trials]:
    """Begin a sweep over REST, and play its trials."""

    def make(**fields: Any) -> Trials:
        status, answer = send("POST", "/sweeps", {**BODY, **fields})
        assert status == 201, answer
        sweep = Sweep.objects.get(pk=answer["id"])
        return Trials(sweep, home, list(Device.objects.order_by("index")))

    return make


def space(**settings: Any) -> dict[str, Any]:
    return {"set": [], "space": settings}


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        (space(lr={"type": "flot", "low": 0, "high": 1}), "space", "lr: there is no type 'flot'; types are float, int, categorical, bool, fixed"),
        (space(lr={"low": 0, "high": 1}), "space", "lr: give its type; types are float, int, categorical, bool, fixed"),
        ({"set": ["lr=uniform:0..1"]}, "space", "lr: there is no type 'uniform'; write a range (lr=1e-5..1e-1"),
        ({"set": ["lr=flot:0.1,0.2"]}, "space", "lr: there is no type 'flot'; write a range"),
        ({"space": [1]}, "space", 'give settings by name, such as {"lr": {"type": "float"'),
    ],
    ids=["object", "missing", "range", "choices", "list"],
)  # fmt: skip
def test_an_unknown_type_is_refused_with_the_types_that_there_are(send, fields, field, sentence):
    status, answer = send("POST", "/sweeps", {**BODY, **fields})

    assert status == 400
    assert answer["errors"][field][0].startswith(sentence)
    assert not Sweep.objects.exists()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"set": ["lr=1..0"]}, "lr: the range from 1 to 0 is empty; low has to be below high"),
        ({"set": ["lr=log:1e-1..1e-5"]}, "lr: the range from 0.1 to 1e-05 is empty; low has to be below high"),
        (space(n={"type": "int", "low": 4, "high": 4}), "n: the range from 4 to 4 is empty; low has to be below high"),
        (space(o=[]), "o: give 1 to 1000 choices as a list"),
        (space(), 'give the space as settings by name, such as {"lr": {"type": "float", ...}}'),
    ],
    ids=["reversed", "reversed-log", "int", "choices", "space"],
)  # fmt: skip
def test_an_empty_range_is_refused_with_its_setting(send, fields, sentence):
    status, answer = send("POST", "/sweeps", {**BODY, **fields})

    assert (status, answer["errors"]) == (400, {"space": [sentence]})
    assert answer["detail"] == f"The space cannot be searched: {sentence}"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"direction": None}, "direction"),
        ({"metric": None, "direction": None, "metrics": [{"name": "a"}]}, "metrics.0.direction"),
        (
            {
                "metric": None,
                "direction": None,
                "metrics": [{"name": "a", "direction": "minimize"}, {"name": "b"}],
            },
            "metrics.1.direction",
        ),
    ],
    ids=["one", "first", "second"],
)
def test_a_missing_direction_says_which_there_are(send, fields, field):
    status, answer = send("POST", "/sweeps", {**BODY, **fields})

    assert (status, answer["errors"]) == (400, {field: ["give minimize or maximize"]})


@pytest.mark.parametrize(
    ("budget", "field", "part"),
    [
        ({"trials": 0}, "budget.trials", "; a budget covers at least one trial"),
        ({"device_hours": 0}, "budget.device_hours", "; give the hours of at least one trial, such as 0.5"),
        ({}, "budget", "give trials, device_hours or both"),
        (None, "budget", 'give a budget, such as {"trials": 20} or {"device_hours": 8}'),
        ({"hours": 8}, "budget.hours", "unknown field; known are trials, device_hours"),
        ({"trials": 10_001}, "budget.trials", "less than or equal to 10000; continue in a second sweep"),
    ],
    ids=["no-trial", "no-hours", "empty", "none", "unknown", "too-many"],
)
def test_a_budget_outside_its_limits_is_refused_with_what_to_give(send, budget, field, part):
    status, answer = send("POST", "/sweeps", {**BODY, "budget": budget})

    assert status == 400
    assert part in answer["errors"][field][0]


def test_device_time_below_one_trial_ends_the_sweep_with_what_was_spent(send, begin):
    trials = begin(budget={"device_hours": 0.001})
    trials.advance()
    trials.start(0)
    Job.objects.update(attained_gpu_s=10.0)
    trials.advance()

    _, answer = send("GET", f"/sweeps/{trials.sweep.pk}")

    assert answer["state"] == "ended"
    assert answer["reason"] == (
        "Its budget of device time is spent (10 s). No trial ended within it; give it more."
    )
    assert send("PATCH", f"/sweeps/{trials.sweep.pk}", {"device_hours": 1})[1]["state"] == "running"


def test_a_metric_that_never_comes_is_told_after_the_first_trial_with_the_names_that_came(send, begin):
    trials = begin()
    trials.advance()
    trials.start(0)
    trials.report_all(0, {"validation_loss": 1.0, "lr": 0.1}, 1, 2)
    trials.advance()
    running = send("GET", f"/sweeps/{trials.sweep.pk}")[1]["state"]
    trials.end(0)
    trials.advance()

    _, answer = send("GET", f"/sweeps/{trials.sweep.pk}")

    assert (running, answer["state"]) == ("running", "failed")
    assert answer["reason"] == (
        "Trial 0 ended without the metric 'val/loss'. It reported validation_loss, lr; choose one of these."
    )
    assert answer["why"]["facts"]["names"] == ["validation_loss", "lr"]
    assert not Job.objects.filter(state="queued").exists()  # those that had begun beside it do not wait on


def test_a_script_that_reports_nothing_is_told_so(send, begin):
    trials = begin()
    trials.advance()
    trials.start(0)
    trials.end(0)
    trials.advance()

    _, answer = send("GET", f"/sweeps/{trials.sweep.pk}")

    assert answer["reason"] == ("Trial 0 ended without the metric 'val/loss'. It reported no metric at all.")


def test_a_script_that_ignores_its_settings_is_pointed_out_and_a_crash_does_not_hide_it(send, begin):
    trials = begin()
    for number in range(4):
        trials.advance()
        trials.start(number)
        if number == 1:
            failure = {"rank": 0, "exception": "ValueError", "message": "broken"}
            trials.end(number, ExitKind.USER_ERROR, first_failure=failure, retriable=False)
        else:
            trials.report(number, 0.5, *range(1, 19))
            trials.end(number)
    trials.advance()

    _, answer = send("GET", f"/sweeps/{trials.sweep.pk}")

    assert answer["warnings"] == [
        "All trials report the same value. Does the script read its settings? They come as --name value, "
        "or as variables with hand_over env."
    ]


@pytest.mark.parametrize(
    ("first", "ignores"),
    [
        ([(1, 0.5)] * 3, True),
        ([(1, 0.5)] * 2, False),  # by chance
        ([(1, 0.5)] * 3 + [(1, None)], True),
        ([(1, None)] * 3, False),
        ([(1, 0.5)] * 3 + [(1, 0.4)], False),
    ],
    ids=["equal", "two", "crash", "crashes", "different"],
)
def test_equal_values_of_three_trials_are_no_chance(first, ignores):
    assert ignores_settings(first) == ignores


@pytest.mark.parametrize(
    "choices",
    [
        {f"a{index}": list(range(10)) for index in range(6)},
        {"a": THOUSAND, "b": THOUSAND},
    ],
    ids=["six-settings", "two-settings"],
)
def test_a_grid_of_a_million_points_is_refused_with_its_number(send, choices):
    status, answer = send("POST", "/sweeps", {**BODY, **space(**choices), "sampler": "grid"})

    assert status == 422
    assert answer["errors"]["sampler"] == [
        "the grid has 1,000,000 points, and 10,000 is the most; use another sampler or fewer choices"
    ]


def test_a_space_of_a_million_points_is_searched_by_another_sampler(begin):
    trials = begin(**space(a=THOUSAND, b=THOUSAND), sampler="auto")
    trials.advance()

    assert SweepTrial.objects.get().settings.keys() == {"a", "b"}


def test_conditions_count_in_the_size_of_a_grid(send):
    few = {"type": "categorical", "choices": THOUSAND, "when": {"a": 0}}
    many = {"type": "categorical", "choices": THOUSAND, "when": {"a": list(range(20))}}

    accepted, _ = send("POST", "/sweeps", {**BODY, **space(a=list(range(50)), b=few), "sampler": "grid"})
    status, answer = send("POST", "/sweeps", {**BODY, **space(a=list(range(50)), b=many), "sampler": "grid"})

    assert accepted == 201  # 49 points without b, 1,000 with it
    assert status == 422
    assert "the grid has over 10,000 points" in answer["detail"]


def test_more_choices_than_can_be_searched_are_refused_before_a_worker_meets_them(send):
    status, answer = send("POST", "/sweeps", {**BODY, **space(**{f"a{n}": THOUSAND for n in range(22)})})

    assert status == 400
    assert answer["errors"]["space"] == [
        "the settings have 22,000 choices in all, and 10,000 is the most; write whole numbers as a range, "
        "such as int:1..1000"
    ]


def test_a_sweep_of_ten_thousand_trials_begins_and_no_larger_one(send, begin):
    trials = begin(budget={"trials": 10_000})
    trials.advance()

    status, answer = send("PATCH", f"/sweeps/{trials.sweep.pk}", {"trials": 10_001})

    assert SweepTrial.objects.count() == 1
    assert status == 400
    assert "continue in a second sweep that learns from this one (warm_start)" in answer["detail"]


@pytest.mark.parametrize("values", ["cuda:0,cuda:1", "cuda:0", "s3:a,b", "choice:w:1,2"])
def test_texts_with_a_colon_stay_texts(values):
    assert read_flags([f"device={values}"])["device"]["type"] in {"categorical", "fixed"}


def test_a_large_space_with_conditions_is_counted_at_once():
    settings = {name: list(range(500)) for name in "ab"}
    found = read_space(settings | {f"c{name}": {"type": "bool", "when": {name: [1]}} for name in "ab"})

    assert found.size() == 501 * 501


@pytest.mark.parametrize(
    ("job", "field"),
    [({"args": None}, "args"), ({"args": [1]}, "args"), ({"command": None}, "command"), ({"command": [None]}, "command"),
     ({"env": None}, "env"), ({"env": "A=1"}, "env")],
    ids=str,
)  # fmt: skip
def test_a_job_whose_fields_have_another_form_is_refused_with_its_field(send, job, field):
    status, answer = send("POST", "/sweeps", {**BODY, "job": {"source": {"text": "print(1)\n"}, **job}})

    assert (status, list(answer["errors"])) == (400, [field])


@pytest.mark.parametrize("names", [("batch-size", "batch.size"), ("lr", "LR"), ("sweep-settings", "lr")])
def test_two_settings_that_would_be_one_variable_are_refused(send, names):
    fields = {"set": [f"{name}=1,2" for name in names], "hand_over": "env"}

    status, answer = send("POST", "/sweeps", {**BODY, **fields})

    assert status == 400
    assert names[0].upper().replace("-", "_") in answer["errors"]["space"][0]


@pytest.mark.parametrize("field", ["name", "min_width", "max_width"])
def test_what_every_sweep_has_cannot_be_changed_to_nothing(send, begin, field):
    sweep = begin().sweep

    status, answer = send("PATCH", f"/sweeps/{sweep.pk}", {field: None})

    assert (status, answer["errors"]) == (400, {field: ["cannot be empty"]})
