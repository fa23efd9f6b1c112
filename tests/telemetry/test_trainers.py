"""Lines of known trainers, each with what is to be read from it; and lines that are none, which change nothing."""

import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.agent.telemetry.layout_reader import LineValues
from orchestrator.agent.telemetry.printed_lines import LineParser

TRAINERS = tomllib.loads(Path(__file__).with_name("trainers.toml").read_text())["trainer"]


def as_record(number: int, found: LineValues) -> dict[str, Any]:
    record: dict[str, Any] = {
        "line": number,
        "step": found.step,
        "total": found.total_steps,
        "unit": found.unit,
    }
    return {**record, "values": {name: pytest.approx(value) for name, value in found.values.items()}}


def expected(record: dict[str, Any]) -> dict[str, Any]:
    return {"step": None, "total": None, "unit": "step", **record}


def read(lines: list[str]) -> list[dict[str, Any]]:
    parser = LineParser()
    found = [(number, parser.feed(line)) for number, line in enumerate(lines, 1)]
    return [as_record(number, values) for number, values in found if values is not None]


def test_the_corpus_has_the_lines_of_at_least_150_trainers():
    assert len({trainer["name"] for trainer in TRAINERS}) >= 150
    assert all(trainer["source"] and trainer["version"] and trainer["lines"] for trainer in TRAINERS)


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer["name"])
def test_the_lines_of_a_trainer_give_their_records(trainer):
    assert read(trainer["lines"]) == [expected(record) for record in trainer["records"]]


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer["name"])
def test_a_parser_that_is_restarted_after_every_line_reads_the_same(trainer):
    parser, whole = LineParser(), LineParser()
    for line in trainer["lines"]:
        again = LineParser()
        again.carry_on(parser.carried)
        parser = again

        assert repr(parser.feed(line)) == repr(whole.feed(line))


WORDS = st.sampled_from(
    [
        "the",
        "model",
        "loads",
        "data",
        "from",
        "disk",
        "worker",
        "host",
        "shapes",
        "score",
        "accuracy",
        "training",
        "top",
        "map",
        "starts",
    ]
)
NUMBERS = st.one_of(
    st.integers(0, 10**7).map(str), st.floats(0, 1e6, allow_nan=False).map(lambda value: f"{value:.4f}")
)
SETTINGS = [
    "lr",
    "seed",
    "batch_size",
    "epochs",
    "hidden_size",
    "dropout",
    "num_workers",
    "step",
    "epoch",
    "loss",
    "batch",
]
PAIRS = st.lists(
    st.tuples(st.sampled_from(SETTINGS), NUMBERS), min_size=2, max_size=12, unique_by=lambda pair: pair[0]
)
PROSE = st.lists(st.one_of(WORDS, NUMBERS), min_size=1, max_size=15).map(" ".join)
CLOCKS = st.tuples(st.integers(0, 23), st.integers(0, 59), st.integers(0, 59)).map(
    lambda parts: "{:02d}:{:02d}:{:02d}".format(*parts)
)
OTHER_BARS = ["Map", "Filter", "Validation DataLoader 0", "Sanity Checking", "Predicting", "Evaluating", "Downloading data",
    "Loading checkpoint shards", "Tokenizing train dataset", "Generating train split", "Fetching 5 files", "Test",
]  # fmt: skip


def repr_of(pairs: list[tuple[str, str]]) -> str:
    return f"Namespace({', '.join(f'{name}={value}' for name, value in pairs)})"


def dump_of(pairs: list[tuple[str, str]]) -> str:
    return "Config {\n" + ",\n".join(f'  "{name}": {value}' for name, value in pairs) + "\n}"


def bar_of(name: str, at: int, total: int) -> str:
    at = min(at, total)
    return f"{name}: {100 * at // total:3d}%|####      | {at}/{total} [00:01<00:02,  4.43it/s, loss=0.3]"


NOISE = st.one_of(
    PROSE,
    PAIRS.map(repr_of),
    PAIRS.map(dump_of),
    PROSE.map(lambda text: f"[W1122 09:31:45.123456789 reducer.cpp:1529] Warning: step 5 loss 0.3 {text}"),
    PROSE.map(lambda text: f"/opt/lib/python3.11/site-packages/a.py:12: UserWarning: epoch 5 step 7 loss 0.3 {text}"),
    st.tuples(CLOCKS, PROSE).map(lambda parts: f"2026-11-22 {parts[0]},123 INFO {parts[1]}"),
    CLOCKS.map(lambda clock: f"eta: {clock}"),
    st.tuples(NUMBERS, NUMBERS).map(lambda parts: f"Step {parts[0]} starts on host {parts[1]}"),
    NUMBERS.map(lambda number: f"saved /data/run-{number}/epoch_3/step_{number}.pt"),
    NUMBERS.map(lambda number: f"Number of parameters: {number}M"),
    NUMBERS.map(lambda number: f"=> loaded checkpoint 'a.pth' (epoch {number})"),
    st.tuples(NUMBERS, PROSE).map(lambda parts: f"[I 2026-11-22 09:31:45,123] Trial {parts[0]} pruned. {parts[1]}"),
    NUMBERS.map(lambda number: f"saved to /data/fold {number}"),
    st.builds(bar_of, st.sampled_from(OTHER_BARS), st.integers(0, 1000), st.integers(1, 1000)),
    st.just('Traceback (most recent call last):\n  File "a.py", line 5, in step\n    loss = 0.3\nValueError: epoch 7 loss 0.3'),
)  # fmt: skip


@given(st.lists(NOISE, max_size=8))
def test_what_is_no_metric_changes_nothing(noise):
    parser, quiet = LineParser(), LineParser()
    for line in ("Epoch 1/5 step 10/100 loss 0.5", "Epoch 2/5 step 20/100 loss 0.4"):
        assert parser.feed(line) == quiet.feed(line)

    found = [parser.feed(line) for text in noise for line in text.split("\n")]

    assert [each for each in found if each is not None] == []
    assert asdict(parser.progress) == asdict(quiet.progress)
    assert parser.feed("Epoch 3/5 step 30/100 loss 0.3") == quiet.feed("Epoch 3/5 step 30/100 loss 0.3")
