"""What scripts print, as values; and that no text can stop or slow the reader."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.telemetry.patterns import LineParser, LineValues


def values_of(parser: LineParser, line: str) -> LineValues:
    """What a line says; it must say something."""
    found = parser.feed(line)
    assert found is not None, line
    return found


@pytest.mark.parametrize(
    ("line", "step", "total_steps", "values"),
    [
        ("step 10/100 loss 0.5", 10, 100, {"loss": 0.5}),
        ("step 10 of 100 loss 0.5", 10, 100, {"loss": 0.5}),
        ("epoch 2 of 7, step 3 of 60: loss 0.5 in 1 of 2.5 h", 63, 420, {"loss": 0.5, "in": 1.0}),
        ("step 72300 loss 2.312 lr 2.1e-4", 72300, None, {"loss": 2.312, "lr": 2.1e-4}),
        ("step=5 loss=0.25 lr=1e-3", 5, None, {"loss": 0.25, "lr": 1e-3}),
        ("2026-01-01 10:00:00,123 INFO step: 7 - loss: 0.3", 7, None, {"loss": 0.3}),
        # nanoGPT
        ("iter 10: loss 2.3014, time 12.01ms, mfu 3.50%", 10, None, {"loss": 2.3014, "time_ms": 12.01, "mfu_percent": 3.5}),
        ("step 500: train loss 2.5, val loss 2.6", 500, None, {"train_loss": 2.5, "val_loss": 2.6}),
        # the DDP tutorial of PyTorch
        ("[GPU0] Epoch 3 | Batchsize: 32 | Steps: 32", 3, None, {}),
        ("Train Epoch: 2 [640/60000 (1%)]\tLoss: 2.3", 60640, None, {"Loss": 2.3}),
        ("Epoch [3/10], Step [100/600], Loss: 0.4321", 1300, 6000, {"Loss": 0.4321}),
        # tqdm, and Lightning's bar
        (" 45%|####5     | 45/100 [00:10<00:12,  4.43it/s, loss=0.5]", 45, 100, {"steps_per_s": 4.43, "loss": 0.5}),
        ("  2%|2         | 2/100 [00:04<03:16,  2.00s/it]", 2, 100, {"steps_per_s": 0.5}),
        ("Epoch 1: 100%|███| 938/938 [00:09<00:00, 98.1it/s, v_num=3, train_loss=0.123]", 938, None, {"steps_per_s": 98.1, "train_loss": 0.123}),
        # Hugging Face
        ("{'loss': 0.5, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.25}", 1, None, {"loss": 0.5, "grad_norm": 1.2, "learning_rate": 5e-05}),
        # llm.c
        ("step   12/19560 | loss 7.123 (+nanz)| norm 1.5 (+nanz)| lr 1.2e-05 | 512.1 ms", 12, 19560, {"loss": 7.123, "norm": 1.5, "lr": 1.2e-05}),
        ("\x1b[32mstep 3\x1b[0m loss \x1b[1m0.5\x1b[0m", 3, None, {"loss": 0.5}),
        ("10%\r20%\rstep 4 loss 1.5", 4, None, {"loss": 1.5}),
        ("global_step: 9, eval/accuracy: 91.2%", 9, None, {"eval/accuracy_percent": 91.2}),
    ],
)  # fmt: skip
def test_a_printed_line_gives_its_values(line, step, total_steps, values):
    found = values_of(LineParser(), line)

    assert (found.step, found.total_steps, found.values) == (step, total_steps, values)


@pytest.mark.parametrize(
    "line",
    ["", "loss: 0.5", "listening on port 29500", "hello", "torch 2.13.0", "rank: 0 world_size: 2", "{}", "100%", "see step by step 5 guides"],
)  # fmt: skip
def test_a_line_without_step_or_epoch_gives_nothing(line):
    assert LineParser().feed(line) is None


def test_epochs_are_steps_where_nothing_else_is():
    parser = LineParser()

    assert [values_of(parser, f"Epoch {n}/3, loss = {n / 2}").step for n in (1, 2, 3)] == [1, 2, 3]
    assert values_of(parser, "Epoch 3/3, loss = 1").total_epochs == 3


def test_steps_of_each_epoch_are_counted_over_all():
    parser = LineParser()
    lines = [
        f"Epoch {epoch}: 50%|##  | {step}/10 [00:01<00:01, 9it/s]" for epoch in range(3) for step in (5, 10)
    ]

    assert [values_of(parser, line).step for line in lines] == [5, 10, 15, 20, 25, 30]


def test_a_dict_takes_the_step_of_the_bar_before():
    parser = LineParser()
    parser.feed(" 45%|####5     | 45/100 [00:10<00:12,  4.43it/s]")

    assert values_of(parser, "{'loss': 0.5, 'epoch': 0.45}").step == 45


def test_values_without_any_step_are_counted():
    parser = LineParser()

    assert [values_of(parser, "{'loss': 0.5}").step for _ in range(3)] == [1, 2, 3]


def test_b47_nan_and_infinity_are_values():
    found = values_of(LineParser(), "step 5 loss nan norm inf drop -inf").values

    assert math.isnan(found["loss"])
    assert (found["norm"], found["drop"]) == (math.inf, -math.inf)


@given(st.text(max_size=400))
def test_no_text_stops_the_reader(line):
    LineParser().feed(line)


PIECES = ["step ", "epoch ", "loss", "=", ":", " ", "1", "9" * 45, "1e999", "-inf", "nan", "[", "]", "/", "|", "%", "'", "{", "}", "\r", "\x1b[", "it/s", ",", "0.5", "train "]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_no_line_of_common_pieces_stops_the_reader(line):
    found = LineParser().feed(line)

    if found is not None:
        assert found.step is None or abs(found.step) < 2**63
        assert all(isinstance(value, float) for value in found.values.values())


@pytest.mark.parametrize("piece", ["a ", "a:", "1%|", "step ", "'", "a.", "1", "|", "a   ", "[", "train ", "\x1b[1;", "0%|x|1/1 [", "nan", "1e", "epoch 1 ["])  # fmt: skip
def test_hostile_lines_take_linear_time(piece):
    line = piece * (1 << 20)
    start = time.perf_counter()

    LineParser().feed(line + "1")

    assert time.perf_counter() - start < 0.2


def test_a_parser_goes_on_where_another_stood():
    lines = [f"Epoch {epoch} step {step}/10 loss 0.5" for epoch in (0, 1, 2) for step in (1, 10)]
    whole = LineParser()
    expected = [whole.feed(line) for line in lines]

    first, second = LineParser(), LineParser()
    found = [first.feed(line) for line in lines[:3]]
    second.carry_on(first.carried)
    found += [second.feed(line) for line in lines[3:]]

    assert found == expected
