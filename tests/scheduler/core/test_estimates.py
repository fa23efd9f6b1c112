"""What a waiting job reads agrees with itself, for every queue: place, who is ahead, start and end."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth.shared import words
from orchestrator.scheduler.core import Policy, State, decide
from orchestrator.scheduler.core.line import IN_LINE
from orchestrator.scheduler.forecast.device_counts import DeviceCountOption
from orchestrator.scheduler.forecast.durations import ExpectedDuration, Like
from tests.scheduler.core.states import NOW, crowded, sentence_of, states

pytestmark = pytest.mark.slow
examples = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
any_states = st.one_of(states(), crowded())
policies = st.sampled_from([Policy(), Policy.progress_aware()])


@examples
@given(any_states, policies)
def test_places_count_up_without_gaps_and_nobody_ahead_has_a_later_place(state: State, policy: Policy):
    decisions = decide(state, policy)

    pools = {job.id: job.pool for job in state.queued}
    for pool in set(pools.values()):
        line = [wait for wait in decisions.wait if pools[wait.job_id] == pool and wait.code in IN_LINE]
        assert [wait.position for wait in line] == list(range(1, len(line) + 1))
        places = {wait.job_id: wait.position for wait in line}
        for wait in line:
            assert all(places[other] < wait.position for other in wait.ahead)
            assert wait.job_id not in wait.blocked_by


@examples
@given(any_states, policies)
def test_a_sentence_counts_the_jobs_ahead_as_the_place_does(state: State, policy: Policy):
    for wait in decide(state, policy).wait:
        said = sentence_of(wait)
        if (several := re.search(r"and (\d+) more are ahead", said)) is not None:
            assert int(several[1]) + 1 == wait.position - 1
        elif " is ahead." in said:
            assert wait.position == 2


@examples
@given(any_states, policies)
def test_a_job_that_starts_now_has_no_later_start(state: State, policy: Policy):
    decisions = decide(state, policy)

    assert not {start.job_id for start in decisions.start} & {wait.job_id for wait in decisions.wait}


@examples
@given(
    first_s=st.floats(0, 10 * 86_400),
    more_s=st.floats(0, 86_400),
    low_s=st.floats(0, 86_400),
    further_s=st.floats(0, 86_400),
)
def test_an_end_is_never_before_its_start(first_s, more_s, low_s, further_s):
    now = datetime.fromtimestamp(NOW, UTC)
    option = DeviceCountOption(
        gpus=1,
        starts_now=False,
        start_earliest=now + timedelta(seconds=first_s),
        start_latest=now + timedelta(seconds=first_s + more_s),
        lasts=ExpectedDuration(low_s, low_s + further_s, 3, Like.CODE),
    )

    start, end = (option.start_earliest, option.start_latest), (option.end_earliest, option.end_latest)
    assert [one <= other for one, other in zip(start, end, strict=True) if one and other] == [True, True]
    assert words.start_range(*end, now) != ""
