"""Jobs that share a device: what they cost each other, who is kept apart, and who moves."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.scheduler.core import (
    Booking,
    Constraints,
    MoveApart,
    Neighbours,
    PairSample,
    PairSeen,
    Policy,
    Start,
    WaitCode,
    decide,
    learn_weights,
)
from orchestrator.scheduler.core.neighbours import predict
from tests.scheduler.core.states import GIB, NOW, gpu, gpus, queued, running, sentence_of, state

RANKED = Policy.progress_aware()
SLOW = Neighbours(limits={"default": 1.3}, uses={("", "vit"): 0.9, ("", "ner"): 0.8, ("", "tiny"): 0.05})


def shared(name: str, *on: str, work: str, **facts: Any) -> Any:
    maker = running if on else queued
    return maker(name, *on, memory_bytes=10 * GIB, work=work, **facts)


def started(decisions: Any) -> dict[str, str]:
    return {start.job_id: start.devices[0].device_id for start in decisions.start}


@pytest.mark.parametrize("policy", [Policy(), RANKED], ids=["in turn", "ranked"])
def test_job_starts_beside_a_neighbour_that_leaves_it_its_speed_and_not_beside_a_busy_one(policy):
    busy, calm = shared("a", "gpu-0", work="ner"), shared("b", "gpu-1", work="tiny")
    there = state(gpus(2), busy, calm, shared("c", work="vit"), neighbours=SLOW)

    assert started(decide(there, policy)) == {"id-c": "gpu-1"}


@pytest.mark.parametrize("policy", [Policy(), RANKED], ids=["in turn", "ranked"])
def test_refused_job_waits_with_the_neighbour_in_its_sentence(policy):
    ner = shared("ner", "gpu-0", work="ner", preemptible=False)
    decisions = decide(state(gpus(1), ner, shared("vit-s", work="vit"), neighbours=SLOW), policy)

    wait = decisions.wait[0]
    assert (wait.code, decisions.start) == (WaitCode.NEIGHBOURS, ())
    # ``vit`` would have half of the device and so take 1.9 times as long.
    assert sentence_of(wait).startswith(
        "Waits for 1 GPU: there is memory on GPU 0, but beside ner it would be 87 % slower."
    )


def test_sentence_names_the_neighbour_that_a_job_would_slow():
    sure = replace(SLOW, pairs={("", "ner", "vit"): PairSeen(3.0, 9), ("", "vit", "ner"): PairSeen(1.0, 9)})
    ner = shared("ner", "gpu-0", work="ner", preemptible=False)

    wait = decide(state(gpus(1), ner, shared("vit-s", work="vit"), neighbours=sure), RANKED).wait[0]

    assert "there is memory on GPU 0, but ner would be 187 % slower beside it." in sentence_of(wait)


@pytest.mark.parametrize("policy", [Policy(), RANKED], ids=["in turn", "ranked"])
def test_two_jobs_of_one_pass_are_kept_apart_too(policy):
    there = state(gpus(2), shared("a", work="vit"), shared("b", work="ner"), neighbours=SLOW)

    assert len(set(started(decide(there, policy)).values())) == 2


@pytest.mark.parametrize(
    "known",
    [replace(SLOW, limits={}), replace(SLOW, limits={"default": 3.0}), replace(SLOW, uses={})],
    ids=["no limit", "a high limit", "nothing known"],
)
def test_without_limit_or_knowledge_jobs_are_packed_by_memory(known):
    there = state(gpus(2), shared("a", "gpu-0", work="ner"), shared("b", work="vit"), neighbours=known)

    assert started(decide(there, RANKED)) == {"id-b": "gpu-0"}


def test_refused_job_gets_the_device_that_its_neighbour_leaves_and_is_not_passed_for_ever():
    ner = shared("ner", "gpu-0", work="ner", preemptible=False, time_limit_s=600.0)
    waiting = shared("vit", work="vit", submitted=1.0, preemptible=False)
    later = shared("more", work="ner", submitted=2.0, preemptible=False)

    decisions = decide(state(gpus(1), ner, waiting, later, neighbours=SLOW), RANKED)

    assert [(one.job_id, one.device_ids) for one in decisions.reserve] == [("id-vit", ("gpu-0",))]
    assert decisions.start == ()


def test_only_the_neighbour_that_slows_is_stopped_for_a_job_of_higher_priority():
    ner, tiny = shared("ner", "gpu-0", work="ner"), shared("tiny", "gpu-0", work="tiny")
    urgent = shared("vit", work="vit", priority=90)

    decisions = decide(state(gpus(1), ner, tiny, urgent, neighbours=SLOW), RANKED)

    assert [one.job_id for one in decisions.preempt] == ["id-ner"]


def measured(**facts: Any) -> Any:
    """Two jobs of an hour each on one device, one of which was seen to be twice as slow beside the other."""
    known = Neighbours(
        limits={"default": 1.3},
        pairs={("", "vit", "ner"): PairSeen(2.0, 4), ("", "ner", "vit"): PairSeen(1.1, 4)},
    )
    hour = {
        "started": NOW - 3600,
        "ran_s": 3600.0,
        "progress_done": 360.0,
        "progress_total": 720.0,
        "step_s": 10.0,
    }
    vit = shared("vit", "gpu-0", work="vit", checkpoint_age_s=5.0, **hour)
    ner = shared("ner", "gpu-0", work="ner", checkpoint_age_s=900.0, **hour)
    return state(gpus(2), vit, ner, **{"neighbours": known, **facts})


def test_slow_pair_parts_where_a_device_is_idle_and_the_cheaper_one_moves():
    assert decide(measured(), RANKED).apart == (MoveApart("id-vit", "id-vit", 2.0, "id-ner"),)


@pytest.mark.parametrize(
    "why",
    [
        {"devices": gpus(1)},
        {"devices": (gpu(0), gpu(1, health="faulty"))},
        {"devices": (gpu(0), gpu(1, foreign_bytes=30 * GIB))},
        {"neighbours": Neighbours(pairs={("", "vit", "ner"): PairSeen(2.0, 4)})},
        {"bookings": (Booking(id="b", name="talk", pool="default", start=NOW + 60, device_ids=("gpu-1",)),)},
        {"queued": (queued("next"),)},
    ],
    ids=["no other device", "a faulty one", "a used one", "no limit", "a booking", "a job that waits for it"],
)
def test_slow_pair_stays_together_while_nothing_better_is_idle(why):
    assert decide(replace(measured(), **why), RANKED).apart == ()


@pytest.mark.parametrize(
    "facts",
    [
        {"preemptible": False},
        {"stopping": True},
        {"started": NOW - 60.0},
        {"progress_done": 715.0},
        {"constraints": Constraints(only_devices=("gpu-0",))},
    ],
    ids=["may not stop", "stops already", "just began", "nearly done", "bound to its device"],
)
def test_job_that_cannot_or_need_not_move_stays(facts):
    there = measured()
    there = replace(there, running=tuple(replace(job, **facts) for job in there.running))

    assert decide(there, RANKED).apart == ()


def test_moved_job_does_not_return_to_its_neighbour():
    there = measured()
    vit = next(job for job in there.running if job.name == "vit")
    waiting = shared("vit", work="vit", ran_s=vit.ran_s)

    after = replace(there, running=tuple(job for job in there.running if job is not vit), queued=(waiting,))

    assert started(decide(after, RANKED)) == {"id-vit": "gpu-1"}


def test_pair_that_was_measured_often_is_believed_and_one_that_was_measured_once_only_half():
    once, often = (
        Neighbours(uses=SLOW.uses, pairs={("", "tiny", "ner"): PairSeen(3.0, runs)}) for runs in (1, 99)
    )
    expected = SLOW.slowdown("", "tiny", ["ner"])

    assert expected == pytest.approx(1.0, abs=0.01)
    assert once.slowdown("", "tiny", ["ner"]) == pytest.approx(2.0, abs=0.01)
    assert often.slowdown("", "tiny", ["ner"]) == pytest.approx(3.0, abs=0.03)


def test_nothing_is_said_of_jobs_that_were_never_seen():
    assert SLOW.slowdown("", "vit", ["never seen"]) is None
    assert SLOW.slowdown("other model", "vit", ["ner"]) is None
    assert SLOW.slowdown("", "vit", []) is None


def test_weights_follow_what_was_measured_and_start_from_a_fair_share():
    assert learn_weights([]) == Neighbours().weights
    truth = replace(Neighbours(), weights=learn_weights([])._replace(fair=1.6, both=0.5)).weights
    uses = [0.1 * n for n in range(1, 11)]
    samples = [PairSample(a, b, predict(truth, a, [b])) for a in uses for b in uses]

    learned = learn_weights(samples)

    assert learned.fair == pytest.approx(1.6, abs=0.1)
    assert learned.both == pytest.approx(0.5, abs=0.1)


def test_equal_states_in_another_order_give_equal_moves():
    there = measured()

    mirrored = replace(there, devices=there.devices[::-1], running=there.running[::-1])

    assert decide(mirrored, RANKED).apart == decide(there, RANKED).apart
    assert isinstance(decide(replace(there, running=(), queued=(queued("x"),)), RANKED).start[0], Start)
