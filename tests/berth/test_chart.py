"""The chart in the terminal."""

from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cli.chart import LABEL_WIDTH, ChartBucket, buckets_of, draw

EMPTY = "\u2800"
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=32)


def flat(count: int) -> list[ChartBucket]:
    return [ChartBucket(step, 1.0, 1.0, 1.0) for step in range(count)]


def drawing(lines: list[str]) -> list[str]:
    return [line[LABEL_WIDTH + 1 :] for line in lines[:-1]]


def test_a_spike_inside_one_bucket_reaches_the_top():
    spiked = [
        *flat(50),
        ChartBucket(50, 1.0, 1.1, 9.0),
        *[ChartBucket(step, 1.0, 1.0, 1.0) for step in range(51, 100)],
    ]

    top, *_, bottom = drawing(draw(spiked, width=60, height=8))

    assert top.strip(EMPTY)
    assert 20 < len(top.rstrip(EMPTY)) < 30  # in the middle
    assert bottom.strip(EMPTY)


def test_labels_name_the_ends_of_both_axes():
    lines = draw([ChartBucket(1, 0.5, 0.5, 0.5), ChartBucket(1000, 2.5, 2.5, 2.5)], width=60, height=6)

    assert lines[0].startswith("      2.5")
    assert lines[5].startswith("      0.5")
    assert lines[6].split() == ["1", "1,000"]


def test_one_point_and_no_point_can_be_drawn():
    one = drawing(draw([ChartBucket(7, 3.0, 3.0, 3.0)], width=40, height=4))

    assert sum(character not in {EMPTY, " "} for line in one for character in line) == 1
    assert not "".join(draw([], width=40, height=4)).strip()


def test_b47_buckets_without_finite_values_are_left_out():
    assert buckets_of([1, 2], [0.5, None], [0.4, None], [0.6, None]) == [ChartBucket(1, 0.4, 0.5, 0.6)]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=40),
    st.integers(12, 80),
    st.integers(1, 12),
)
def test_any_series_fits_its_frame(values, width, height):
    buckets = [ChartBucket(step, *sorted(each)) for step, each in enumerate(values)]

    lines = draw(buckets, width=width, height=height)

    assert len(lines) == height + 1
    assert all(len(line) <= max(width, LABEL_WIDTH + 30) for line in lines)
    assert any(character not in {EMPTY, " "} for line in drawing(lines) for character in line)
