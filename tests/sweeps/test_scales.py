"""Numbers that follow another setting, and spaces that are ready by name."""

import pytest

from orchestrator.sweeps.core.flags import read_flags
from orchestrator.sweeps.core.reading import read_space
from orchestrator.sweeps.core.ready import READY, flags_of
from orchestrator.sweeps.core.space import WrongSpace


@pytest.mark.parametrize(
    ("scale", "rate"), [("batch/32", 0.08), ("sqrt(batch/32)", 0.02)], ids=["linear", "root"]
)
def test_rate_is_handed_over_in_proportion_to_the_batch(scale, rate):
    space = read_space(read_flags(["batch=32,128,512", f"lr=log:1e-4..1e-1*{scale}"]))

    assert space.handed_over({"batch": 32, "lr": 0.005}) == {"batch": 32, "lr": 0.005}
    assert space.handed_over({"batch": 512, "lr": 0.005}) == {"batch": 512, "lr": rate}


def test_space_with_a_scale_survives_being_written_and_read():
    space = read_space(read_flags(["batch=32,128", "lr=log:1e-4..1e-1*sqrt(batch/64)"]))

    assert read_space(space.to_json()) == space


def test_rate_stays_as_searched_where_the_setting_that_it_follows_does_not_exist():
    space = read_space(read_flags(["opt=adam,sgd", "batch=32,64@opt=sgd", "lr=1e-4..1e-1*batch/32"]))

    assert space.handed_over({"opt": "adam", "lr": 0.01})["lr"] == 0.01


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["lr=1e-4..1e-1*batch/32"], "no other setting of the space"),
        (["lr=1e-4..1e-1*lr/32"], "no other setting of the space"),
        (["batch=small,large", "lr=1e-4..1e-1*batch/32"], "have to be numbers above 0"),
        (["batch=0,32", "lr=1e-4..1e-1*batch/32"], "have to be numbers above 0"),
        (["batch=16,32", "lr=1e-4..1e-1*batch/0"], "write its scale as"),
        (["batch=16,32", "lr=1e-4..1e-1*batch/x"], "write its scale as"),
        (["batch=16,32", "depth=int:1..4*batch/32"], "scale"),
    ],
)
def test_scale_that_makes_no_sense_is_refused_with_its_setting(flags, words):
    with pytest.raises(WrongSpace, match=words):
        read_space(read_flags(flags))


@pytest.mark.parametrize("name", READY)
def test_ready_space_can_be_searched_under_the_names_of_the_script(name):
    own = [f"my-{each}" for each in READY[name].names]

    space = read_space(read_flags(flags_of(f"{name}:{','.join(own)}")))

    assert {setting.name for setting in space.settings} == set(own)
    assert read_space(read_flags(flags_of(name))).width == space.width


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr-rang", "lr-range, lr-batch"),
        ("lr-batch:lr", "lr-batch:lr,batch-size"),
        ("lr-range:", "lr-range:lr"),
    ],
)
def test_ready_space_that_there_is_not_is_refused(text, words):
    with pytest.raises(WrongSpace, match=words):
        flags_of(text)
