"""How many pilots are wanted: never too many, enough for what waits, and none that is in use is given up."""

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.lending.wanting import Decision, Limits, PilotFacts, decide

limits = st.builds(
    Limits, devices=st.integers(1, 8), most_pilots=st.integers(0, 6), idle_s=st.sampled_from([0.0, 300.0])
)
needs = st.lists(st.integers(0, 10), max_size=12)


@st.composite
def pilots(draw: st.DrawFn) -> list[PilotFacts]:
    count = draw(st.integers(0, 6))
    return [_pilot(draw, number) for number in range(count)]


def _pilot(draw: st.DrawFn, number: int) -> PilotFacts:
    joined, leaving = draw(st.booleans()), draw(st.booleans())
    if not joined:
        return PilotFacts(number, joined=False, leaving=leaving)
    used, free = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    idle = draw(st.sampled_from([0.0, 100.0, 1000.0]))
    return PilotFacts(number, True, used, free, 0.0 if used else idle, leaving)


@given(limits, needs, pilots())
def test_no_more_pilots_are_asked_for_than_the_pool_may_have(limits, needs, pilots):
    wanted = decide(limits, needs, pilots).request

    assert wanted >= 0
    assert wanted == 0 or len(pilots) + wanted <= limits.most_pilots


@given(limits, needs, pilots())
def test_pilot_is_given_back_only_unused_and_once(limits, needs, pilots):
    facts = {pilot.id: pilot for pilot in pilots}

    for id_ in decide(limits, needs, pilots).release:
        assert facts[id_].used == 0
        assert not facts[id_].leaving
        assert not facts[id_].joined or facts[id_].idle_for_s >= limits.idle_s


@given(limits, pilots())
def test_nothing_is_asked_for_where_nothing_waits(limits, pilots):
    assert decide(limits, [], pilots).request == 0


@given(limits, needs, pilots())
def test_asking_once_is_enough(limits, needs, pilots):
    """What was asked for and what was given back are known to the next decision, which then wants nothing more."""
    first = decide(limits, needs, pilots)
    coming = [PilotFacts(100 + number, joined=False) for number in range(first.request)]
    after = [pilot._replace(leaving=pilot.leaving or pilot.id in first.release) for pilot in pilots]

    second = decide(limits, needs, [*after, *coming])

    assert second.request == 0
    assert not second.release


@given(st.integers(1, 8), st.lists(st.integers(1, 8), max_size=12))
def test_every_job_that_fits_a_pilot_gets_its_devices(devices, needs):
    fitting = [need for need in needs if need <= devices]

    wanted = decide(Limits(devices, 100, 300.0), needs, []).request

    assert wanted * devices >= sum(fitting)
    assert wanted <= len(fitting)


@given(limits, needs, pilots())
def test_same_facts_give_the_same_decision_in_any_order(limits, needs, pilots):
    assert decide(limits, needs, pilots) == decide(limits, needs[::-1], pilots[::-1])


def test_request_that_nothing_needs_any_more_is_withdrawn():
    assert decide(Limits(4, 2, 300.0), [], [PilotFacts(1, joined=False)]) == Decision(0, (1,))


def test_idle_pilot_is_kept_for_its_idle_time():
    limits = Limits(4, 2, 300.0)

    assert decide(limits, [], [PilotFacts(1, True, 0, 4, 299.0)]) == Decision()
    assert decide(limits, [], [PilotFacts(1, True, 0, 4, 300.0)]) == Decision(0, (1,))


def test_idle_pilot_that_a_waiting_job_fits_is_kept():
    assert decide(Limits(4, 2, 300.0), [4], [PilotFacts(1, True, 0, 4, 900.0)]) == Decision()


def test_job_that_no_pilot_fits_asks_for_none():
    assert decide(Limits(4, 2, 300.0), [5], []) == Decision()
