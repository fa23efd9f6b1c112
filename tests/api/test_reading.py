"""Strict JSON."""

import pytest

from orchestrator.api.http.reading import MAX_DEPTH, MAX_KEYS, read_json, read_object
from orchestrator.exceptions import Malformed


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1" * 5000])
def test_b30_numbers_beyond_a_double_are_refused(number):
    with pytest.raises(Malformed):
        read_json(f'{{"memory_gib": {number}}}'.encode())


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b"{" + b",".join(b'"%d":1' % n for n in range(MAX_KEYS + 1)) + b"}",
    ],
    ids=["arrays", "objects", "just too deep", "keys"],
)
def test_b38_deep_and_wide_bodies_are_refused_before_they_are_built(body):
    with pytest.raises(Malformed, match=r"nested|keys"):
        read_json(body)


@pytest.mark.parametrize("body", [b'{"gpus": 1, "gpus": 8}', b'{"env": {"A": "1", "\\u0041": "2"}}'])
def test_b38_a_key_twice_is_refused(body):
    with pytest.raises(Malformed, match="twice"):
        read_json(body)


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"a": 1,}', b"{'a': 1}", b"\xff\xfe{}", b'{"a": 1} {}', b'"abc']
)
def test_what_is_not_json_is_refused_with_its_place(body):
    with pytest.raises(Malformed, match=r"UTF-8|line 1"):
        read_json(body)


def test_brackets_and_colons_in_a_script_do_not_count():
    code = "[{:" * 20_000 + '\\"' * 1000

    text = read_json(b'{"text": "' + code.encode() + b'"}')["text"]

    assert text == code.replace('\\"', '"')


def test_depth_up_to_the_limit_is_read():
    assert read_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)


def test_an_empty_body_is_an_empty_object_and_a_list_is_none():
    assert read_object(b"  ") == {}
    with pytest.raises(Malformed):
        read_object(b"[1]")
