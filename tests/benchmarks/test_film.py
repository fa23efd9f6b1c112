"""How a film is put together from what a browser showed."""

from pathlib import Path

from benchmarks.film import LONGEST_S, Camera, listed


def durations(lines: list[str]) -> list[float]:
    return [float(line.split()[1]) for line in lines if line.startswith("duration ")]


def test_each_picture_is_shown_until_the_next_one_and_the_last_until_the_end():
    lines = listed(Camera(Path("/f"), [10.0, 10.5, 12.0]), ended_at=15.0)

    assert durations(lines) == [0.5, 1.5, 3.0]
    assert [line for line in lines if "000001" in line] == ["file '/f/000001.jpg'"]
    assert lines[-1] == "file '/f/000002.jpg'"


def test_a_film_that_became_too_long_is_played_faster():
    lines = listed(Camera(Path("/f"), [0.0, 30.0]), ended_at=2 * LONGEST_S)

    assert sum(durations(lines)) == LONGEST_S
