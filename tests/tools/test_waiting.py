"""Waiting leaves the processors to those who work."""

import time

import pytest

from tests.waiting import pause_s, wait_until


def test_a_question_is_asked_a_tenth_of_the_time_at_most() -> None:
    assert pause_s(0.001, 0.05) == 0.05
    assert pause_s(0.02, 0.05) == pytest.approx(0.18)
    assert pause_s(30, 0.05) == 0.5, "an answer is seen within half a second"


def test_a_wait_ends_with_the_first_answer_that_holds() -> None:
    answers = iter([False, False, True])

    wait_until(lambda: next(answers), every_s=0)

    assert list(answers) == []


def test_a_wait_in_vain_says_what_the_others_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.waiting.PATIENCE_S", 0.01)

    with pytest.raises(AssertionError, match="in vain\nthe log"):
        wait_until(lambda: time.sleep(0.02), 0.01, lambda: "the log")
