"""What scripts print, as values; and that no text can stop or slow the reader."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.agent.telemetry.printed_lines import LineParser
from orchestrator.agent.telemetry.tokens import LONGEST_LINE
from tests.telemetry.lines import last_of, values_of


@pytest.mark.parametrize(
    ("line", "step", "total_steps", "values"),
    [
        ("step 10/100 loss 0.5", 10, 100, {"loss": 0.5}),
        ("step 10 of 100 loss 0.5", 10, 100, {"loss": 0.5}),
        ("epoch 2 of 7, step 3 of 60: loss 0.5 in 1 of 2.5 h", 63, 420, {"loss": 0.5}),
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
        ("\x1b[2K\x1b[1Gstep 3 loss 2\x1b[2K\x1b[1Gstep 4 loss 1.5", 4, None, {"loss": 1.5}),
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


@pytest.mark.parametrize(
    "code",
    ['print "epoch 5"', 'print("step 7/10 loss 0.5"', "epoch 3/10, loss=0.2", "train(epoch=9, loss=0.5)"],
)
def test_the_code_of_a_syntax_error_is_no_progress(code):
    parser = LineParser()
    lines = ['  File "/job/train.py", line 2', f"    {code}", "    ^^^^^^^^", "SyntaxError: invalid syntax"]

    assert [parser.feed(line) for line in lines] == [None] * 4
    assert values_of(parser, "step 1/3 loss 0.5").step == 1


def test_the_line_behind_the_stacks_of_a_watchdog_is_read():
    parser = LineParser()
    for line in (
        "Timeout (0:00:05)!",
        "Thread 0x7f (most recent call first):",
        '  File "a.py", line 3 in step',
    ):
        assert parser.feed(line) is None

    assert values_of(parser, "step 1/3 loss 0.5").step == 1


@pytest.mark.code("B47")
def test_nan_and_infinity_are_values():
    found = values_of(LineParser(), "step 5 loss nan norm inf drop -inf").values

    assert math.isnan(found["loss"])
    assert (found["norm"], found["drop"]) == (math.inf, -math.inf)


@given(st.text(max_size=400))
def test_no_text_stops_the_reader(line):
    LineParser().feed(line)


@pytest.mark.parametrize(
    "line",
    [
        "[CV2] fit on fold v2",
        "% |+%|1/2",
        "step 1e910k/10 loss 0.5",
        "step \x01 loss \x01 acc = 0.5 Namespace(a=1)",
    ],
)
def test_odd_lines_do_not_stop_the_reader(line):
    LineParser().feed(line)


def test_a_row_with_a_number_of_epochs_of_many_digits_does_not_stop_the_reader():
    row = f"1/{'9' * 5000} 1 2 3 4 640: 100%|###| 8/8 [00:05<00:00, 1.5it/s]"

    assert (
        last_of(f"Epoch    GPU_mem   box_loss   cls_loss  Instances       Size\n{row}").total_epochs is None
    )


PIECES = ["step ", "epoch ", "fold ", "Trial ", " finished with value: ", "loss", "=", ":", " ", "1", "9" * 45, "1e999", "-inf", "nan", "[", "]", "/", "|", "%", "'", "{", "}", "\r", "\x1b[", "it/s", ",", "0.5", "train ", "[CV", "% |", "k", "\x01"]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_no_line_of_common_pieces_stops_the_reader(line):
    found = LineParser().feed(line)

    if found is not None:
        assert found.step is None or abs(found.step) < 2**63
        assert all(isinstance(value, float) for value in found.values.values())


@pytest.mark.parametrize("piece", ["a ", "a:", "1%|", "step ", "'", "a.", "1", "|", "a   ", "[", "train ", "\x1b[1;", "0%|x|1/1 [", "nan", "1e", "epoch 1 [", "1,", "1 ", "   ", "1:", "-", "loss (", "━", "[=", "Warning", "step 1 ", "1/", "{'loss': ", "x=1, ", "\t|", "loading a-b ", "model is ", "loaded ", "Trial 1", "Trial 1 finished with values: [1, ", "[CV 1/3] END ....a=1;, ", "1% (1 of 2) |", "|███| 1/2 [1%] in ", "fold 1", "fold  ", "第1", "第1/", "轮", "损失1", "époque ", "val: a ", "val ", "best ", "accuracy of the model ", "--- Iteration ", "epoch1", "epoch ", "('loss', "])  # fmt: skip
def test_hostile_lines_take_linear_time(piece):
    """A pattern that searched again from each place would take sixteen times as long for four times the line."""
    short, long = (piece * (size // len(piece)) for size in (LONGEST_LINE // 4, LONGEST_LINE))

    assert processor_s(long) < 8 * processor_s(short) + 0.01


def processor_s(line: str) -> float:
    """The least processor time of three readings, which other processes disturb least."""
    times_s = []
    for _ in range(3):
        start_s = time.process_time()
        LineParser().feed(f"step {line}1")
        times_s.append(time.process_time() - start_s)
    return min(times_s)


def test_a_parser_goes_on_where_another_stood():
    lines = [f"Epoch {epoch} step {step}/10 loss 0.5" for epoch in (0, 1, 2) for step in (1, 10)]
    whole = LineParser()
    expected = [whole.feed(line) for line in lines]

    first, second = LineParser(), LineParser()
    found = [first.feed(line) for line in lines[:3]]
    second.carry_on(first.carried)
    found += [second.feed(line) for line in lines[3:]]

    assert found == expected


def test_settings_over_several_lines_are_no_metrics():
    parser = LineParser()
    lines = ["Config {", '  "step": 5,', '  "loss": 0.3,', '  "nested": {', '    "epoch": 7', "  }", "}"]

    assert [parser.feed(line) for line in lines] == [None] * 7
    assert values_of(parser, "step 1 loss 0.5").step == 1


def test_a_bracket_that_nobody_closes_hides_no_training():
    parser = LineParser()
    parser.feed("loading {")

    assert values_of(parser, "step 1 loss 0.5").step == 1


def test_a_state_of_another_version_is_passed_over():
    parser = LineParser()
    parser.carry_on([5, 1.0, False, 1])
    parser.carry_on({"standing": {"step": 7, "unheard_of": 1}})

    assert parser.progress.step == 7


def test_a_heading_of_an_evaluation_holds_for_the_values_right_below_it():
    parser = LineParser()
    lines = [
        "step 5 loss 1.0",
        "Test Error:",
        " Accuracy: 45.8%, Avg loss: 2.1",
        "loss: 0.9",
        "step 6 loss 0.8",
        "loss: 0.7",
    ]

    found = [parser.feed(line) for line in lines]

    assert [dict(each.values) for each in found if each] == [
        {"loss": 1.0},
        {"test_Accuracy_percent": 45.8, "test_loss": 2.1},
        {"test_loss": 0.9},
        {"loss": 0.8},
        {"loss": 0.7},
    ]


@pytest.mark.parametrize(
    ("lines", "step", "values"),
    [
        ("Epoch 3: loss: 0.4\nTest results of the best model:\nTest Accuracy: 0.93", 3, {"test_accuracy": 0.93}),
        ("Epoch 3: loss: 0.4\nEvaluating the best epoch:\nTest set: Average loss: 0.03, Accuracy: 9800/10000", 3, {"test_loss": 0.03, "test_Accuracy": 0.98}),
        ("Epoch 3: loss: 0.4\nINFO Saved best model:\nEpoch 4: loss: 0.3", 4, {"loss": 0.3}),
        ("Epoch 3: loss: 0.4\nINFO Saved best model:\nEpoch 3: val loss: 0.3", 3, {"val_loss": 0.3}),
        ("step 5/50 loss 0.4\nbest step:\n\nstep 6/50 loss 0.3", 6, {"loss": 0.3}),
        ("Epoch 1 step 5/50 loss 0.4\nbest model:\nEpoch 2 step 1/50 loss 0.3", 51, {"loss": 0.3}),
    ],
)  # fmt: skip
def test_what_stands_below_a_heading_of_the_best_is_read(lines, step, values):
    found = last_of(lines)

    assert (found.step, found.values) == (step, values)


@pytest.mark.parametrize(
    "lines",
    [
        "Epoch 3: loss: 0.4\nBest epoch:\nEpoch 2: loss: 0.3",
        "step 30 loss 0.4\nbest step was:\nstep 22 loss 0.3",
        "Epoch 3 step 5/50 loss 0.4\nbest step:\nEpoch 3 step 4/50 loss 0.3",
    ],
)
def test_the_best_step_that_was_is_no_progress(lines):
    parser = LineParser()

    assert [parser.feed(line) for line in lines.split("\n")][1:] == [None, None]


@pytest.mark.parametrize(
    "line", ["epoch 3/10 is best", "Epoch 3 was the best", "Epoch 3: best loss 0.2", "epoch 3 best so far"]
)
def test_a_line_that_names_the_best_epoch_takes_no_training_back(line):
    parser = LineParser()
    for epoch in range(1, 11):
        values_of(parser, f"Epoch {epoch}/10 loss 0.5")

    assert parser.feed(line) is None
    assert parser.progress.step == 10
    assert values_of(LineParser(), line).step == 3


@pytest.mark.parametrize("heading", ["Test results of the best model:", "Best model:"])
def test_a_test_of_the_best_model_is_read(heading):
    parser = LineParser()
    line = "Accuracy: 0.93" if "Test" in heading else "test accuracy: 0.93"
    for earlier in ("Epoch 10/10 loss 0.5 acc 0.8", heading):
        parser.feed(earlier)
    found = parser.feed(line)

    assert found is not None
    assert found.values == {"test_Accuracy" if "Test" in heading else "test_accuracy": 0.93}


@pytest.mark.parametrize("values", ["loss: 0.3, acc: 0.9", "{'loss': 0.3, 'acc': 0.9}"])
def test_the_values_of_the_best_epoch_are_not_those_of_the_last(values):
    parser = LineParser()
    lines = f"Epoch 10/10 loss 0.5 acc 0.8\nBest epoch:\n{values}"

    assert [parser.feed(line) for line in lines.split("\n")][1:] == [None, None]


def test_indented_lines_behind_a_frame_without_its_traceback_are_read():
    parser = LineParser()
    for line in ('  File "train.py", line 3 in step', '  File "train.py", line 9 in <module>'):
        assert parser.feed(line) is None

    found = [parser.feed(f"    step {step} loss: 0.5") for step in range(10, 80, 10)]

    assert [each.step for each in found if each] == [40, 50, 60, 70]


def test_the_code_below_a_frame_is_no_metric():
    lines = ['  File "train.py", line 3', "    step = 5, loss = 0.5", "           ^^^^", "SyntaxError: bad"]
    parser = LineParser()

    assert [parser.feed(line) for line in lines] == [None] * 4
