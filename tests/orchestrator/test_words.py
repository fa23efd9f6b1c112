from datetime import UTC, datetime, timedelta

import pytest

from orchestrator import words


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["GPU 3"], "GPU 3"),
        (["GPU 0", "GPU 1", "GPU 3"], "GPUs 0, 1, 3"),
        (["simulated GPU 0", "CPU slot 1", "CPU slot 2"], "simulated GPU 0, CPU slots 1, 2"),
        ([], ""),
    ],
)
def test_devices_are_listed_with_their_noun_said_once(labels, said):
    assert words.listed(labels) == said


@pytest.mark.parametrize(
    ("sentence", "when", "said"),
    [
        (
            "Waits for 2 GPUs. Expected within 35 min.",
            "within 34 min",
            "Waits for 2 GPUs. Expected within 34 min.",
        ),
        ("Waits for 2 GPUs. Expected in 1 h 5 min to 2 h.", "", "Waits for 2 GPUs."),
        ("Waits for Expected in x.", "in 2 min", "Waits for Expected in x. Expected in 2 min."),
    ],
)
def test_a_sentence_tells_the_range_of_now_and_not_of_the_last_pass(sentence, when, said):
    assert words.expecting(sentence, when) == said


@pytest.mark.parametrize(
    ("first_s", "last_s", "said"),
    [
        (-60, 20, "within a minute"),
        (-60, 250, "within 5 min"),
        (10, 4260, "within 1 h 11 min"),
        (360, 540, "in 6 to 9 min"),
        (3700, 8000, "in 1 h 1 min to 2 h 13 min"),
    ],
)
def test_a_start_is_told_as_a_range_in_words(first_s: float, last_s: float, said: str):
    now = datetime(2026, 11, 21, tzinfo=UTC)
    earliest, latest = (now + timedelta(seconds=each) for each in (first_s, last_s))
    assert words.start_range(earliest, latest, now) == said


@pytest.mark.parametrize(
    ("number", "said"), [(None, ""), (10**7, "10,000,000"), (0.00012345, "0.000123"), (512_345.6, "512,346")]
)
def test_whole_numbers_are_told_whole_and_others_to_a_few_digits(number: float | None, said: str):
    assert words.value(number) == said
