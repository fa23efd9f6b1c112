"""How long a job would run, by earlier runs; and what it gains with other numbers of devices."""

from datetime import timedelta

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from berth.shared import words
from orchestrator.models import JobState
from orchestrator.scheduler.forecast.device_counts import DeviceCountOption
from orchestrator.scheduler.forecast.durations import ExpectedDuration, Like, expected_durations
from orchestrator.scheduler.forecast.planning import plan
from orchestrator.scheduler.forecast.wording import tell_outcomes
from orchestrator.spec.job_spec import JobSpec
from tests.berth.shared.test_words import ends_of

pytestmark = pytest.mark.django_db
HASH = "5" * 64


@pytest.fixture
def ran(make_job):
    """An earlier run that succeeded after ``seconds``."""

    def make(owner=None, *, seconds: float, bundle: str = HASH, **fields):
        columns = {name: fields.pop(name) for name in ("state", "total_steps") if name in fields}
        columns = {"state": JobState.SUCCEEDED, **columns}
        return make_job(owner, seconds_run=seconds, bundle=bundle, spec=fields, **columns)

    return make


@pytest.fixture
def asked(make_job):
    def make(**fields):
        return make_job(
            bundle=fields.pop("bundle", HASH), total_steps=fields.pop("total_steps", None), spec=fields
        )

    return make


def test_runs_of_the_same_code_and_arguments_say_most(ran, asked, bob):
    ran(bob, seconds=100, args=["--lr", "1"])
    ran(bob, seconds=120, args=["--lr", "1"])
    ran(bob, seconds=110, args=["--lr", "1"])
    ran(seconds=9_000, args=["--epochs", "90"])

    found = expected_durations(asked(args=["--lr", "1"]), [1, 2])

    assert found.keys() == {1}
    assert (found[1].runs, found[1].like) == (3, Like.CODE_AND_ARGUMENTS)
    assert found[1].low_s == pytest.approx(95)
    assert found[1].high_s == pytest.approx(126)


def test_of_edited_code_only_ones_own_runs_count(ran, asked, bob):
    ran(bob, seconds=5, bundle="7" * 64)
    ran(seconds=100, bundle="8" * 64, args=["--lr", "1"])
    ran(seconds=300, bundle="8" * 64)

    found = expected_durations(asked(), [1])[1]

    assert (found.runs, found.like) == (1, Like.SCRIPT_AND_ARGUMENTS)
    assert [found.low_s, found.high_s] == pytest.approx([240, 360])


def test_what_failed_and_other_scripts_say_nothing(ran, asked):
    ran(seconds=3, state=JobState.FAILED)
    ran(seconds=100, bundle="8" * 64, entrypoint="other.py")

    assert expected_durations(asked(), [1]) == {}


def test_more_steps_take_longer_and_no_limit_is_passed(ran, asked):
    ran(seconds=100, total_steps=1_000)

    longer = expected_durations(asked(total_steps=3_000), [1])[1]
    limited = expected_durations(asked(total_steps=3_000, time_limit_s=250.0), [1])[1]

    assert [longer.low_s, longer.high_s] == pytest.approx([240, 360])
    assert [limited.low_s, limited.high_s] == pytest.approx([240, 250])


def test_each_number_of_devices_says_when_it_starts_and_when_it_is_done(
    ran, ada, bob, make_device, make_attempt
):
    devices = [make_device(index) for index in range(4)]
    make_attempt(state=JobState.RUNNING, owner=bob, devices=devices[:2], gpus=2, time_limit_s=600.0)
    for gpus, seconds in ((1, 7_200), (2, 3_600), (4, 1_800)):
        for _ in range(3):
            ran(seconds=seconds, gpus=gpus, bundle="0" * 64)

    found = plan(ada, JobSpec.model_validate({"gpus": 2}))
    said = {each.gpus: text for each, text in tell_outcomes(found)}

    assert list(said) == [2, 1, 4]
    assert said[2] == "Done in 57 min to 1 h 3 min, by your 3 earlier runs of train.py with these arguments."
    assert said[1] == "1 device: starts now, done in 1 h 54 min to 2 h 6 min, runs 2.0 times as long"
    assert said[4].startswith("4 devices: starts within ")
    assert said[4].endswith(" min, runs 2.0 times as fast")
    assert [each.gpus for each in found.outcomes if each.is_soonest] == [4]
    for each in found.outcomes:
        assert each.end_earliest is not None
        assert each.end_latest is not None
        assert each.end_earliest <= each.end_latest


def test_where_nothing_ran_before_it_is_said_in_words(ada, make_device):
    make_device(0)
    make_device(1)

    found = plan(ada, JobSpec.model_validate({}))

    assert [text for _, text in tell_outcomes(found)] == [
        "When it would be done is not known: no run like it on 1 device has succeeded yet.",
        "2 devices: starts now",
    ]
    assert not any(each.is_soonest for each in found.outcomes)


TIMES_S = st.floats(0, 10 * 86_400)


@given(first_s=TIMES_S, more_s=TIMES_S, low_s=TIMES_S, wider_s=TIMES_S)
def test_no_plan_ends_before_it_starts_in_numbers_or_in_words(first_s, more_s, low_s, wider_s):
    now = timezone.now()
    start = now + timedelta(seconds=first_s)
    lasts = ExpectedDuration(low_s, low_s + wider_s, runs=3, like=Like.CODE)
    outcome = DeviceCountOption(1, False, start, start + timedelta(seconds=more_s), lasts)

    began = words.start_range(outcome.start_earliest, outcome.start_latest, now)
    done = words.start_range(outcome.end_earliest, outcome.end_latest, now)

    assert outcome.end_earliest is not None
    assert outcome.end_latest is not None
    assert outcome.end_earliest >= start
    assert outcome.end_latest >= start + timedelta(seconds=more_s)
    assert all(one <= other for one, other in zip(ends_of(began), ends_of(done), strict=True))
