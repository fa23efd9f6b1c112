"""The metrics file: fast lines, odd lines, and halves of lines."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.agent.telemetry.metric_lines import LONGEST_LINE_BYTES, parse_lines
from orchestrator.store.metrics.writer import Point
from training.events import event_line, heartbeat_line, metric_line, total_steps_line

NOW = 1_750_000_000.0


def parse(*lines, **options):
    return parse_lines(b"".join(line + b"\n" for line in lines), now=NOW, **options)


def test_what_the_library_writes_is_read():
    data = b"".join(
        [
            metric_line(10, NOW - 1, {"loss": 0.5, "lr": 1}),
            heartbeat_line(NOW - 0.5),
            total_steps_line(1000),
            event_line("checkpoint", {"step": 10, "bytes": 5}),
        ]
    )

    batch = parse_lines(data, now=NOW)

    assert batch.points == [Point("loss", 10, NOW - 1, 0.5), Point("lr", 10, NOW - 1, 1.0)]
    assert (batch.heartbeat_s, batch.total_steps, batch.last_step) == (NOW - 0.5, 1000, 10)
    assert batch.events[0]["event"] == "checkpoint"
    assert (batch.consumed_bytes, batch.lines, batch.dropped_lines) == (len(data), 4, 0)


@pytest.mark.code("B47")
def test_nan_and_infinities_are_points_and_flagged():
    batch = parse(
        b'{"step": 8120, "loss": NaN, "norm": Infinity, "low": -Infinity, "lr": 0.1, "said": "nan"}'
    )

    assert [point.name for point in batch.points] == ["loss", "norm", "low", "lr", "said"]
    assert math.isnan(batch.points[0].value)
    assert batch.nonfinite == 4
    assert batch.first_nonfinite == ("loss", 8120)


@pytest.mark.code("B48")
@pytest.mark.parametrize(
    ("step", "kept"),
    [("5", 5), ("-3", -3), ("7.9", 7), ("1e3", 1000), (str(2**63), 2**63 - 1), ("-1e30", -(2**63) + 1), ("NaN", 4), ("null", 4), ("true", 4), ('"x"', 4), ("1e999", 2**63 - 1), ("[1]", 4)],
)  # fmt: skip
def test_any_step_becomes_an_integer(step, kept):
    batch = parse(b'{"step": %s, "loss": 1}' % step.encode(), last_step=4)

    assert batch.points[0].step == kept


@pytest.mark.code("B48")
def test_decreasing_steps_keep_their_order_and_are_counted():
    batch = parse(*(b'{"step": %d, "loss": 1}' % step for step in (5, 6, 3, 4)))

    assert [point.step for point in batch.points] == [5, 6, 3, 4]
    assert batch.odd_steps == 1


def test_lines_without_a_step_take_the_one_before():
    batch = parse(b'{"step": 5, "loss": 1}', b'{"val": 2}')

    assert batch.points[1].step == 5
    assert parse(b'{"val": 2}', last_step=9).points[0].step == 9
    assert parse(b'{"val": 2}').points[0].step == 0


@pytest.mark.code("B49")
@pytest.mark.parametrize("value", ["0", "10413792000", "1e400", "NaN", '"now"', "null", "-1"])
def test_impossible_times_are_replaced(value):
    batch = parse(b'{"step": 1, "time": %s, "loss": 1}' % value.encode())

    assert batch.points[0].time_s == NOW
    assert batch.odd_times == 1


@pytest.mark.code("B50")
def test_one_line_has_a_limit_of_names():
    batch = parse(json.dumps({f"m{n}": n for n in range(3000)}).encode())

    assert len(batch.points) == 1000


@pytest.mark.code("B51")
def test_names_are_text_of_limited_length():
    batch = parse(
        json.dumps(
            {"<img onerror>": 1, "n" * 500: 1, "a\nb\0": 1, "  ": 1, "\u00e9" * 300: 1, "": 1}
        ).encode()
    )

    names = [point.name for point in batch.points]
    assert names == ["<img onerror>", "n" * 200, "a\ufffdb\ufffd", "\u00e9" * 100]


@pytest.mark.code("B52")
def test_line_of_ten_megabytes_is_dropped_and_counted():
    batch = parse(b'{"step": 1, "x": "' + b"x" * (10 << 20) + b'"}', b'{"step": 2, "loss": 1}')

    assert batch.dropped_lines == 1
    assert [point.step for point in batch.points] == [2]


@pytest.mark.code("B52")
def test_incomplete_line_is_left_for_the_next_call():
    data = b'{"step": 1, "loss": 1}\n{"step": 2, "lo'

    batch = parse_lines(data, now=NOW)

    assert batch.consumed_bytes == data.index(b"\n") + 1
    assert len(batch.points) == 1
    assert parse_lines(data, now=NOW, at_end=True).dropped_lines == 1


@pytest.mark.code("B52")
def test_endless_line_is_dropped():
    data = b"x" * (LONGEST_LINE_BYTES + 1)

    batch = parse_lines(data, now=NOW)

    assert (batch.consumed_bytes, batch.dropped_lines) == (len(data), 1)


@pytest.mark.parametrize(
    "line",
    [b"[1]", b"1", b"null", b'"x"', b"{", b"}{", b"\xff\xfe", b"\0\0", b'{"a":1}{"b":2}', b"[" * 50_000, b'{"a":' * 10_000],
)  # fmt: skip
def test_lines_that_are_no_object_are_dropped_and_counted(line):
    batch = parse(line, b'{"step": 1, "loss": 1}')

    assert batch.dropped_lines == 1
    assert len(batch.points) == 1


def test_values_that_are_no_numbers_are_left_out():
    batch = parse(
        b'{"step": 1, "a": "text", "b": null, "c": [1], "d": {"e": 1}, "f": true, "g": 2, "h": 1e400}'
    )

    assert [point.name for point in batch.points] == ["g", "h"]
    assert batch.points[1].value == math.inf


def test_numbers_beyond_a_float_become_infinite():
    batch = parse(b'{"step": 1, "a": ' + b"9" * 400 + b"}")

    assert batch.points[0].value == math.inf


def test_blank_lines_are_nothing():
    assert parse(b"", b"  ", b"\r").dropped_lines == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(["step", "time", "total_steps", "epoch", "event", "heartbeat", "loss", "t"]) | st.text(
    max_size=5
)


@given(st.lists(st.dictionaries(KEYS, JSON, max_size=6).map(json.dumps), max_size=5))
def test_any_json_is_read_without_failing(lines):
    batch = parse(*(line.encode() for line in lines))

    assert all(-(2**63) <= point.step < 2**63 for point in batch.points)
    assert all(isinstance(point.value, float) and math.isfinite(point.time_s) for point in batch.points)
    assert batch.dropped_lines == 0


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_failing(data):
    batch = parse_lines(data, now=NOW)

    assert batch.consumed_bytes == data.rfind(b"\n") + 1


@given(st.binary(max_size=100), st.integers(0, 100))
def test_lines_do_not_depend_on_how_they_arrive(noise, cut):
    data = b'{"step": 1, "loss": 0.5}\n' + noise + b'\n{"step": 2, "loss": 0.25}\n'
    whole = parse_lines(data, now=NOW)
    first = parse_lines(data[:cut], now=NOW)
    second = parse_lines(data[first.consumed_bytes :], now=NOW, last_step=first.last_step)

    assert repr(first.points + second.points) == repr(whole.points)
