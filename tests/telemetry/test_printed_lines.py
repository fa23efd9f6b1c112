"""What scripts print, as values; and that no text can stop or slow the reader."""

import math
import time
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.agent.telemetry.layout_reader import LineValues
from orchestrator.agent.telemetry.printed_lines import LineParser
from orchestrator.agent.telemetry.tokens import LONGEST_LINE


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


@pytest.mark.code("B47")
def test_nan_and_infinity_are_values():
    found = values_of(LineParser(), "step 5 loss nan norm inf drop -inf").values

    assert math.isnan(found["loss"])
    assert (found["norm"], found["drop"]) == (math.inf, -math.inf)


@given(st.text(max_size=400))
def test_no_text_stops_the_reader(line):
    LineParser().feed(line)


PIECES = ["step ", "epoch ", "fold ", "Trial ", " finished with value: ", "loss", "=", ":", " ", "1", "9" * 45, "1e999", "-inf", "nan", "[", "]", "/", "|", "%", "'", "{", "}", "\r", "\x1b[", "it/s", ",", "0.5", "train "]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_no_line_of_common_pieces_stops_the_reader(line):
    found = LineParser().feed(line)

    if found is not None:
        assert found.step is None or abs(found.step) < 2**63
        assert all(isinstance(value, float) for value in found.values.values())


@pytest.mark.parametrize("piece", ["a ", "a:", "1%|", "step ", "'", "a.", "1", "|", "a   ", "[", "train ", "\x1b[1;", "0%|x|1/1 [", "nan", "1e", "epoch 1 [", "1,", "1 ", "   ", "1:", "-", "loss (", "━", "[=", "Warning", "step 1 ", "1/", "{'loss': ", "x=1, ", "\t|", "loading a-b ", "model is ", "loaded ", "Trial 1", "Trial 1 finished with values: [1, ", "fold 1", "fold  ", "第1", "第1/", "轮", "损失1", "époque "])  # fmt: skip
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


def last_of(lines: str) -> LineValues:
    """What the last of several lines says."""
    parser = LineParser()
    *_, last = (parser.feed(line) for line in lines.split("\n"))
    assert last is not None
    return last


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("tok/sec: 1,234,567", {"tok/sec": 1234567.0}),
        ("tok/sec: 1_234_567.5", {"tok/sec": 1234567.5}),
        ("tok/sec: 1\u202f234\u202f567", {"tok/sec": 1234567.0}),
        ("tok/sec 1 234 567", {}),  # three columns, or one number: nobody can tell
        ("ppl    76.71", {"ppl": 76.71}),
        ("eta: 1:23:45", {}),
        ("time 1h 23m", {}),
        ("elapsed 00:12", {}),
        ("total time: 0.12m", {}),
        ("12.3k tok/s", {"tokens_per_s": 12300.0}),
        ("speed: 12.3k tok/s", {"speed_per_s": 12300.0}),
        ("seen 1.2M", {"seen": 1.2e6}),
        ("accuracy 45%", {"accuracy_percent": 45.0}),
        ("memory 3.2GB", {"memory_gb": 3.2}),
        ("max_mem: 1234M", {"max_mem_mb": 1234.0}),
        ("time 120ms", {"time_ms": 120.0}),
        ("time (ms): 120", {"time_ms": 120.0}),
        ("commit 3f2a9c1", {}),
        ("accuracy: 9842/10000 (98%)", {"accuracy": 0.9842}),
        ("loss: tensor(0.5234, device='cuda:0', grad_fn=<NllLossBackward0>)", {"loss": 0.5234}),
        ("Average loss: 0.5", {"loss": 0.5}),
        ("ppl 0,52", {}),  # a decimal comma, or a list of two
        ("acc: 0,5234", {}),
        ("shape 3,224,22", {}),
        ("size 3.224,22", {}),  # a point between thousands, and a decimal comma
        ("acc: 0.5,0.6", {"acc": 0.5}),  # a list, as with a space behind its comma
        ("acc: 0.5, 0.6", {"acc": 0.5}),
        ('"acc": [0.5,0.6,0.7]', {"acc": 0.5}),
    ],
)
def test_a_number_is_read_as_it_is_meant_or_not_at_all(line, values):
    found = values_of(LineParser(), f"step 5 | loss_a 0.1 | {line}").values

    assert found == {"loss_a": 0.1, **values}


@pytest.mark.parametrize("line", ["step    5/1000", "iteration        5/    1000", "step 5 of 1000", "step 00005/01000", "Step [5/1000]", "step 5/1,000"])  # fmt: skip
def test_padded_counts_are_progress(line):
    found = values_of(LineParser(), line)

    assert (found.step, found.total_steps) == (5, 1000)


@pytest.mark.parametrize(
    "line",
    [
        "Namespace(lr=0.0003, steps=20000, batch=32, seed=1, ballast=0, crash=0, hang=0, nan=0, oom=0)",
        "lr=0.0003, steps=20000, batch=32, seed=1",
        "Config(step=5, epoch=3, loss=0.5)",
        "{'lr': 0.001, 'batch_size': 32, 'epochs': 10, 'seed': 1}",
        "{'batch': 32, 'lr': 0.1}",
        "epoch: 100",
        "max_epochs=6",
        "STEP=5",
        "python train.py --epoch 3 --lr 0.1",
        "best epoch: 3, best loss: 0.5",
        "Resuming from checkpoint at epoch 5",
        "Number of parameters: 12.3M",
        "[W1122 09:31:45.123456789 reducer.cpp:1529] Warning: step 5 loss 0.3",
        "eval step 5/100 loss 0.3",
        "100%|#####| 170498071/170498071 [00:01<00:00, 100123123.1B/s]",
    ],
)  # fmt: skip
def test_settings_and_warnings_are_no_metrics(line):
    assert LineParser().feed(line) is None


def test_settings_over_several_lines_are_no_metrics():
    parser = LineParser()
    lines = ["Config {", '  "step": 5,', '  "loss": 0.3,', '  "nested": {', '    "epoch": 7', "  }", "}"]

    assert [parser.feed(line) for line in lines] == [None] * 7
    assert values_of(parser, "step 1 loss 0.5").step == 1


def test_a_bracket_that_nobody_closes_hides_no_training():
    parser = LineParser()
    parser.feed("loading {")

    assert values_of(parser, "step 1 loss 0.5").step == 1


def test_a_bar_beside_the_training_is_no_progress():
    bar = "{name} {percent}%|#####     | {at}/{total} [00:04<03:16,  2.50it/s]"
    lines = [
        bar.format(name="Map:", percent=100, at=64, total=64),
        bar.format(name="", percent=2, at=10, total=500),
        bar.format(name="", percent=100, at=13, total=13),
        bar.format(name="Loading checkpoint shards:", percent=100, at=2, total=2),
    ]
    parser = LineParser()
    found = [parser.feed(line) for line in lines]

    assert [(each.step, each.total_steps) if each else None for each in found] == [
        None,
        (10, 500),
        None,
        None,
    ]


def test_a_bar_that_begins_again_is_the_next_epoch():
    parser = LineParser()
    bars = [f"{10 * at}%|###  | {at}/10 [00:01<00:01, 9it/s]" for _ in range(3) for at in (5, 10)]

    assert [values_of(parser, bar).step for bar in bars] == [5, 10, 15, 20, 25, 30]


def test_a_longer_bar_after_a_whole_one_is_the_training_if_that_had_no_values():
    """Preparing the data draws a bar without a name too."""
    prepared, trained = "100%|###| 64/64 [00:01<00:00, 64it/s]", "1%|   | 10/1000 [00:01<01:00, 9it/s]"
    found = last_of(f"{prepared}\n{trained}")

    assert (found.step, found.total_steps) == (10, 1000)


def test_iterations_that_start_again_in_each_epoch_are_counted_over_all():
    parser = LineParser()
    lines = [f"Epoch {epoch} | Iter {at} | loss 0.5" for epoch in (1, 2, 3) for at in (0, 10, 20)]

    assert [values_of(parser, line).step for line in lines] == [0, 10, 20, 30, 40, 50, 60, 70, 80]


def test_steps_that_go_on_over_epochs_are_left_as_they_are():
    parser = LineParser()
    lines = [f"Epoch {epoch} step {100 * epoch + at} loss 0.5" for epoch in (0, 1, 2) for at in (50, 100)]

    assert [values_of(parser, line).step for line in lines] == [50, 100, 150, 200, 250, 300]


def test_steps_below_a_line_with_the_epoch_belong_to_it_if_they_start_again():
    parser = LineParser()
    for line in ("Epoch 1/2", "step 50/100 loss 0.5", "step 100/100 loss 0.4", "Epoch 2/2"):
        parser.feed(line)

    assert values_of(parser, "step 50/100 loss 0.3").step == 150


def test_samples_are_called_samples():
    found = last_of("Train Epoch: 1 [0/60000 (0%)]\tLoss: 0.5\nTrain Epoch: 2 [5120/60000 (9%)]\tLoss: 0.3")

    assert (found.step, found.unit) == (65120, "sample")


def test_a_loss_alone_counts_at_the_step_before_it():
    assert last_of("step 500 loss 2.5\nval loss: 2.6").values == {"val_loss": 2.6}
    assert last_of("step 500 loss 2.5\nval loss: 2.6").step == 500


def test_a_test_is_not_the_training():
    found = last_of(
        "Train Epoch: 1 [5120/60000 (9%)]\tLoss: 0.3\nTest set: Average loss: 0.05, Accuracy: 9842/10000 (98%)"
    )

    assert found.values == {"test_loss": 0.05, "test_Accuracy": 0.9842}


def test_a_state_of_another_version_is_passed_over():
    parser = LineParser()
    parser.carry_on([5, 1.0, False, 1])
    parser.carry_on({"standing": {"step": 7, "unheard_of": 1}})

    assert parser.progress.step == 7


def steps_of(*lines):
    parser = LineParser()
    return [found.step for line in lines if (found := parser.feed(line)) is not None]


def test_a_counter_that_falls_to_where_it_began_goes_on():
    lines = [f"step {step} loss 1.0" for step in (1, 101, 201, 1, 101, 201, 1)]

    assert steps_of(*lines) == [1, 101, 201, 301, 401, 501, 601]


def test_a_counter_that_falls_before_its_total_counts_from_the_start():
    assert steps_of(*(f"step {step}/1000 loss 1.0" for step in (0, 100, 200, 0, 100))) == [
        0,
        100,
        200,
        0,
        100,
    ]


def test_a_counter_counts_from_the_start_after_a_traceback():
    before = [f"step {step} loss 1.0" for step in (0, 100, 200)]
    error = ["Traceback (most recent call last):", '  File "a.py", line 1', "RuntimeError: lost"]

    assert steps_of(*before, *error, "step 0 loss 1.0", "step 100 loss 1.0") == [0, 100, 200, 0, 100]


def test_a_counter_of_the_whole_training_never_goes_on_by_itself():
    assert steps_of("global_step=100 loss=1.0", "global_step=200 loss=1.0", "global_step=100 loss=1.0") == [
        100,
        200,
        100,
    ]


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
    ("line", "step", "total_steps", "epoch", "values"),
    [
        ("Episode 11/500, Step 87/1000", 87, 1000, None, {}),
        ("Episode: 11, Step: 87, reward: 3.5", 87, None, None, {"Episode": 11.0, "reward": 3.5}),
        ("Episode: 11 | epoch: 3 | reward: 3.5", 3, None, 3.0, {"Episode": 11.0, "reward": 3.5}),
        ("timesteps: 200, episode: 9, reward: 3.5", 200, None, None, {"episode": 9.0, "reward": 3.5}),
        ("Epoch 3 | timestep 5 | Step 101 | loss 0.5", 101, None, 3.0, {"timestep": 5.0, "loss": 0.5}),
        ("global_step=3442, episode=9, reward=1.5", 3442, None, None, {"episode": 9.0, "reward": 1.5}),
        ("Episode 11/500, reward: 3.5", 11, 500, None, {"reward": 3.5}),
    ],
)
def test_an_episode_is_the_progress_only_where_nothing_else_is(line, step, total_steps, epoch, values):
    found = last_of(f"Starting.\n{line}")

    assert (found.step, found.total_steps, found.epoch, found.values) == (step, total_steps, epoch, values)


def test_steps_are_not_counted_over_episodes():
    lines = ["Episode 1/500 reward: 1", "Step 40/1000", "Episode 2/500 reward: 2", "Step 60/1000"]
    parser = LineParser()

    found = [parser.feed(line) for line in lines]

    assert [(each.step, each.total_steps) for each in found if each] == [
        (1, 500),
        (40, 1000),
        (40, None),
        (60, 1000),
    ]


def test_a_column_of_episodes_is_the_step_only_where_no_other_column_is():
    assert last_of("episode  reward  length\n3  2.5  10").step == 3
    found = last_of("episode  step  reward\n3  400  2.5")

    assert (found.step, found.values) == (400, {"episode": 3.0, "reward": 2.5})


@pytest.mark.parametrize(
    "line",
    [
        "Loaded checkpoint 'a.pth' (epoch 12)",
        "=> loaded checkpoint 'checkpoint.pth.tar' (epoch 90)",
        "2026-01-01 10:00:00,123 INFO Loaded checkpoint a.pth (epoch: 12, loss: 0.3)",
        "Successfully loaded model: epoch 12, val_loss: 0.3",
        "Model loaded from a.pth, epoch=12, accuracy=0.9",
        "Loading pretrained model weights (epoch 12)",
        "Restored optimizer state, step 500/1000",
        "Resuming from epoch 12",
        "Resuming training: epoch 12/50",
        "Epoch 12 loaded from a.pth",
        "Checkpoint geladen (Epoche 12)",
        "Loaded checkpoint with val_loss: 0.3",
    ],
)
def test_a_line_that_tells_of_loading_is_no_progress(line):
    parser, quiet = LineParser(), LineParser()
    for each in (parser, quiet):
        each.feed("Epoch 0: loss 0.9")

    assert LineParser().feed(line) is None
    assert parser.feed(line) is None
    assert parser.progress == quiet.progress


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("data loading: 0.1 | epoch 3 | loss: 0.5", {"data_loading": 0.1, "loss": 0.5}),
        ("epoch 3 | loading time: 0.1 | loss: 0.5", {"loading_time": 0.1, "loss": 0.5}),
        ("epoch 3 | loss: 0.5 | resumed: 1", {"loss": 0.5, "resumed": 1.0}),
    ],
)
def test_the_time_of_loading_data_is_a_value(line, values):
    found = values_of(LineParser(), line)

    assert (found.step, found.values) == (3, values)


TRIAL = "[I 2026-01-02 10:00:00,123] Trial {trial} finished with "


@pytest.mark.parametrize(
    ("line", "step", "values"),
    [
        (TRIAL.format(trial=3) + "value: 0.91 and parameters: {'x': 0.3, 'loss': 0.2, 'epoch': 7}. Best is trial 2 with value: 0.93.", 3, {"value": 0.91, "best_value": 0.93}),
        (TRIAL.format(trial=0) + "value: -1e-05 and parameters: {}. Best is trial 0 with value: -1e-05.", 0, {"value": -1e-05, "best_value": -1e-05}),
        (TRIAL.format(trial=4) + "values: [0.91, 12.5] and parameters: {'x': 0.3}. ", 4, {"value_0": 0.91, "value_1": 12.5}),
        (TRIAL.format(trial=5) + "value: 0.5 and parameters: {'layer': 'Conv(size=3)', 'lr': 0.1}. Best is trial 2 with value: 0.93.", 5, {"value": 0.5, "best_value": 0.93}),
        ("[I 2020-01-02 10:00:00,123] Finished trial#1 with value: 0.5 with parameters: {'x': 0.3}. Best is trial#1 with value: 0.5.", 1, {"value": 0.5, "best_value": 0.5}),
    ],
)  # fmt: skip
def test_the_end_of_a_trial_gives_its_value(line, step, values):
    found = values_of(LineParser(), line)

    assert (found.step, found.values, found.moves) == (step, values, True)


@pytest.mark.parametrize(
    "line",
    [
        "[I 2026-01-02 10:00:00,123] Trial 5 pruned. ",
        "[W 2026-01-02 10:00:00,123] Trial 5 failed with parameters: {'loss': 0.2} because of an error.",
        "[I 2026-01-02 10:00:00,123] A new study created in memory with name: no-name-1",
    ],
)
def test_a_trial_without_a_value_gives_nothing(line):
    assert LineParser().feed(line) is None


def test_the_end_of_a_trial_moves_no_training():
    parser = LineParser()
    parser.feed("Epoch 8/10: loss 0.4")
    before = asdict(parser.progress)

    found = values_of(parser, TRIAL.format(trial=3) + "value: 0.91 and parameters: {'x': 0.3}.")

    assert (found.step, found.moves) == (3, False)
    assert asdict(parser.progress) == before


def test_epochs_go_on_over_the_folds_of_a_cross_validation():
    lines = [f"Fold {fold}, Epoch {epoch}/3: loss 0.5" for fold in (1, 2, 3) for epoch in (1, 2, 3)]

    assert steps_of(*lines) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_fold_above_its_epochs_tells_how_many_epochs_there_are():
    parser = LineParser()
    lines = [
        line for fold in (1, 2) for line in (f"===== Fold {fold}/2 =====", "Epoch 0/9 loss: 0.5", "Epoch 9/9 loss: 0.4")
    ]  # fmt: skip

    found = [parser.feed(line) for line in lines]

    assert [each.step for each in found if each] == [0, 9, 10, 19]


def test_a_fold_that_ends_early_leaves_no_gap():
    parser = LineParser()
    lines = ["Fold 1 of 4", "Epoch 1/10 loss 0.5", "Epoch 2/10 loss 0.4", "Fold 1: best loss 0.4", "Fold 2 of 4", "Epoch 1/10 loss 0.5"]  # fmt: skip

    found = [each for line in lines if (each := parser.feed(line)) is not None]

    assert [(each.step, each.total_epochs) for each in found] == [(1, 40), (2, 40), (3, 32)]


def test_steps_within_the_epochs_of_a_fold_go_on():
    lines = [
        f"Fold {fold} Epoch [{epoch}/2] Step [{step}/10] loss: 0.5" for fold in (0, 1) for epoch in (1, 2) for step in (5, 10)
    ]  # fmt: skip

    assert steps_of(*lines) == [5, 10, 15, 20, 25, 30, 35, 40]


def test_epochs_that_go_on_over_folds_are_left_as_they_are():
    assert steps_of("Fold 1 epoch 1 loss 0.5", "Fold 2 epoch 2 loss 0.4", "Fold 3 epoch 3 loss 0.4") == [
        1,
        2,
        3,
    ]


@pytest.mark.parametrize(
    "line", ["folder 3 of 5", "unfold 2", "10-fold 3", "saved to /x/fold 7", "fold accuracy 0.5"]
)
def test_what_is_no_fold_changes_nothing(line):
    parser, quiet = LineParser(), LineParser()

    assert parser.feed(line) is None
    assert parser.progress == quiet.progress


@pytest.mark.parametrize(
    ("line", "step", "total_steps", "values"),
    [
        ("Epoche 3/10, Verlust: 0.42, Genauigkeit: 0.91", 3, 10, {"Verlust": 0.42, "Genauigkeit": 0.91}),
        ("Époque 3/10, perte: 0.42, précision: 0.91", 3, 10, {"perte": 0.42, "précision": 0.91}),
        ("Epoque 3 sur 10 - perte : 0.42 - précision : 0.91", 3, 10, {"perte": 0.42, "précision": 0.91}),
        ("Época 3 de 10, pérdida: 0.42, precisión: 0.91", 3, 10, {"pérdida": 0.42, "precisión": 0.91}),
        ("Epoca 3/10 | perdida 0.42", 3, 10, {"perdida": 0.42}),
        ("Étape 30/100, perte: 0.42", 30, 100, {"perte": 0.42}),
        ("Paso 30/100, pérdida: 0.42", 30, 100, {"pérdida": 0.42}),
        ("轮次 3/10 损失 0.42 准确率 0.9", 3, 10, {"损失": 0.42, "准确率": 0.9}),
        (
            "轮次\uff1a3/10\uff0c损失\uff1a0.42\uff0c准确率\uff1a90\uff05",
            3,
            10,
            {"损失": 0.42, "准确率_percent": 90.0},
        ),
        ("第3/10轮\uff0c训练损失0.42\uff0c验证准确率0.9", 3, 10, {"训练损失": 0.42, "验证准确率": 0.9}),
        ("【第 3 轮】 损失: 0.42、准确率: 0.9", 3, None, {"损失": 0.42, "准确率": 0.9}),
        ("第3个epoch 损失=0.42", 3, None, {"损失": 0.42}),
        ("Epoch 3/10, 损失: 0.42", 3, 10, {"损失": 0.42}),
        ("步数 30/100 损失 0.42 用时 12秒", 30, 100, {"损失": 0.42}),
    ],
)
def test_lines_in_other_languages_give_their_values(line, step, total_steps, values):
    found = values_of(LineParser(), line)

    assert (found.step, found.total_steps, found.values) == (step, total_steps, values)


@pytest.mark.parametrize(
    "line",
    ["最佳 轮次: 3, 损失: 0.4", "加载模型\uff08轮次 12\uff09", "Modèle chargé (époque 12)", "Mejor época: 3", "第3章", "温度25度\uff0c速度30", "paso a paso 5 guías", "验证: 45%|####      | 45/100 [00:10<00:12,  4.43it/s]"],
)  # fmt: skip
def test_lines_in_other_languages_without_a_metric_give_nothing(line):
    parser, quiet = LineParser(), LineParser()

    assert parser.feed(line) is None
    assert parser.progress == quiet.progress


@pytest.mark.parametrize(
    "start", ["DEBUG TRAIN Batch", "2026-01-05 10:00:01,123 DEBUG TRAIN | steps/sec 1.2| Batch"]
)
def test_the_second_number_of_wenet_is_the_position_from_the_first_line_on(start):
    end = "loss 210.2 lr 0.0001 grad_norm 3.2 rank 0"
    parser = LineParser()

    found = [values_of(parser, f"{start} {epoch}/{at} {end}") for epoch in (0, 1) for at in (100, 200)]

    assert [(each.step, each.total_steps, each.epoch) for each in found] == [
        (100, None, 0.0),
        (200, None, 0.0),
        (400, None, 1.0),
        (500, None, 1.0),
    ]
    assert found[0].values["loss"] == 210.2
    assert "rank" not in found[0].values


def test_a_batch_of_a_rank_counts_up_to_its_total():
    found = values_of(LineParser(), "Train Batch 5/100 loss 0.5 lr 0.1 rank 0")

    assert (found.step, found.total_steps) == (5, 100)


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("[resumed] Epoch 3/10 loss 0.5", 3),
        ("run=resume-2 epoch=3 loss=0.5", 3),
        ("data loaded in 0.3s, step 5: loss 0.5", 5),
        ("batch loaded 0.3 s | step 5 | loss 0.5", 5),
        ("Restored best weights; Epoch 8/10 val_loss 0.3", 8),
    ],
)
def test_a_word_of_loading_beside_measured_values_hides_no_progress(line, step):
    found = last_of(f"Starting.\n{line}")

    assert found.step == step


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


def test_folds_within_each_epoch_lengthen_no_training():
    parser = LineParser()
    lines = [f"Epoch {epoch}/3 - fold {fold}/2 loss 0.5" for epoch in (1, 2) for fold in (1, 2)]
    first, *others = [line for line in map(parser.feed, lines) if line]

    assert (first.step, first.epoch) == (1, 1.0)  # nothing tells yet that the folds lie within
    assert [(line.step, line.epoch, line.total_epochs) for line in others] == [
        (1, 1.0, 3),
        (2, 2.0, 3),
        (2, 2.0, 3),
    ]


def test_a_batch_of_a_rank_is_no_epoch_of_wenet():
    found = last_of("Starting.\nTRAIN Batch 10/100 loss 0.3 rank 0")

    assert found is None or found.epoch is None
