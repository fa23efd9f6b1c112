"""Steps, epochs and episodes, counted over all lines of a training."""

import pytest

from orchestrator.agent.telemetry.printed_lines import LineParser
from tests.telemetry.lines import last_of, steps_of, values_of


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


def test_a_bar_without_words_after_lines_of_epochs_is_no_progress():
    bar = "100%|##########| 10000/10000 [00:01<00:00, 8000.1it/s]"

    assert steps_of("Epoch 1/2 loss 0.5", "Epoch 2/2 loss 0.4", bar, "Epoch 2/2 acc 0.9") == [1, 2, 2]


def test_a_bar_below_the_headline_of_its_epoch_is_progress():
    bar = "50%|#####     | 5/10 [00:01<00:00, 9.1it/s]"

    assert steps_of("Epoch 1/2", bar, "Epoch 2/2", bar)[1::2] == [5, 15]


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
    "named",
    [
        "bad epochs: 2",
        "bad_epochs: 2",
        "num_bad_epochs: 2",
        "patience epochs: 30",
        "no improvement in epochs: 30",
        "warmup epochs: 50",
        "remaining epochs: 50",
        "epochs: 5",
    ],
)
def test_epochs_behind_another_word_or_below_the_epoch_are_no_total(named):
    assert last_of(f"Epoch 7 | loss: 0.6\nEpoch 8 | loss: 0.5 | {named}").total_epochs is None


@pytest.mark.parametrize(
    "line",
    [
        "Epoch: 2 | loss: 0.5 | Train epochs: 10",
        "Epoch: 2 loss: 0.5 Training epochs: 10",
        "total epochs: 10, epoch: 2, loss: 0.5",
        "max epochs=10, epoch=2, loss=0.5",
        "num epochs=10, epoch=2, loss=0.5",
        "n epochs=10, epoch=2, loss=0.5",
        "Number of epochs: 10, epoch: 2, loss: 0.5",
        "2026-11-28 10:00:01,123 INFO epoch: 2, loss: 0.5, number of train epochs: 10",
    ],
)
def test_epochs_behind_words_of_a_number_are_the_total(line):
    assert last_of(f"Starting.\n{line}").total_epochs == 10


@pytest.mark.parametrize("named", ["max bad epochs: 2", "number of bad epochs: 2", "total warmup epochs: 50"])
def test_a_number_of_other_epochs_is_no_total(named):
    assert last_of(f"Epoch 7 | loss: 0.6\nEpoch 8 | loss: 0.5 | {named}").total_epochs is None


def test_a_named_total_leaves_that_of_a_fraction():
    assert last_of("Epoch 7/100 | loss: 0.6\nEpoch 8 | loss: 0.5 | epochs: 20").total_epochs == 100


@pytest.mark.parametrize(
    "line", ['{"epoch": 3, "loss": 0.5, "config": {"epochs": 10}}', "epoch: 3, epochs: 10, loss: 0.5"]
)
def test_the_epochs_beside_an_epoch_are_its_total(line):
    assert values_of(LineParser(), line).total_epochs == 10


@pytest.mark.parametrize(
    ("lines", "total"),
    [
        ("epoch 1/2 warmup loss 0.5\nepoch: 10 num_epochs: 50 loss: 0.5", 50),
        ("Epoch 5/5 loss 0.3\nepoch=6, epochs=20, loss=0.2", 20),
        (
            '{"epoch": 1, "total_epochs": 10, "loss": 0.4}\n'
            "Epoch 2/3 eval loss 0.3\n"
            '{"epoch": 3, "total_epochs": 10, "loss": 0.4}',
            10,
        ),
    ],
)
def test_a_named_total_follows_a_fraction_that_is_of_something_shorter(lines, total):
    assert last_of(lines).total_epochs == total


@pytest.mark.parametrize("counts", [(5000, 100, 41), (5000, 4000, 10, 3000, 2)])
def test_a_counter_that_falls_below_where_it_began_gives_no_negative_step(counts):
    steps = steps_of(*(f"step {count} loss 0.5" for count in counts))

    assert len(steps) == len(counts)
    assert all(step is not None and step > 0 for step in steps)


def test_rounds_go_on_where_the_stride_does_not_divide_them():
    counts = [*range(10, 101, 10), *range(5, 106, 10), *range(10, 101, 10)]
    steps = steps_of(*(f"Iter {count} loss: 0.5" for count in counts))

    assert steps == [*range(10, 101, 10), *range(105, 206, 10), *range(215, 306, 10)]


@pytest.mark.parametrize(
    ("counts", "last_step"),
    [
        ((100, 200, 300, 10, 110, 210, 310, 20), 630),
        ((10, 20, 30, 1, 10, 20, 30, 10, 20), 80),
        ((500, 600, 700, *range(0, 701, 100), 0), 1100),
        ((*range(10, 91, 10), *range(5, 86, 10), *range(0, 91, 10), 5), 280),
    ],
)
def test_a_round_that_begins_later_or_earlier_than_the_first_goes_on(counts, last_step):
    steps = steps_of(*(f"[{count}] loss: 0.5" for count in counts))

    assert steps[-1] == last_step


def test_a_second_training_of_lines_of_evaluations_goes_on():
    lines = [f"Step {step}: val_loss=0.5" for _ in range(2) for step in (1000, 2000, 3000)]

    assert steps_of(*lines) == [1000, 2000, 3000, 4000, 5000, 6000]


@pytest.mark.parametrize("heading", ["Fold {}", "Round {}"])
def test_lines_of_evaluations_go_on_below_a_heading(heading):
    lines = [
        line
        for number in (1, 2)
        for line in (heading.format(number), *(f"step {at} | test acc 0.7" for at in (10, 20)))
    ]

    assert steps_of(*lines) == [10, 20, 30, 40]


def test_batches_of_an_evaluation_beside_a_training_do_not_count():
    lines = ["Step 900: loss=0.5", "Step 1000: loss=0.5", "Step 1000: val_loss=0.5", "Step 10: val_loss=0.5"]

    assert steps_of(*lines) == [900, 1000, 1000, 1000]


def test_a_bar_with_a_loss_and_its_learning_rate_is_the_training_by_any_name():
    bar = "my model:  10%|#         | 10/100 [01:00<09:00,  1.67it/s, {values}]"

    assert steps_of(bar.format(values="loss=0.5"), bar.format(values="lr: 1.0e-04 loss: 5.1e-01")) == [10]
    assert steps_of("Validation my" + bar.format(values="lr=0.1, loss=0.5")) == []


def test_a_fraction_of_an_epoch_beside_a_count_means_that_it_counts_over_all():
    """Also where the training went on from the middle of epoch 7."""
    lines = [f"{step}/900 (epoch {step / 100:.3f}), train_loss = 0.5" for step in (750, 800, 801)]

    assert steps_of(*lines) == [750, 800, 801]


def test_a_fraction_of_an_epoch_changes_no_counter_that_was_seen_to_restart():
    lines = [f"Epoch {epoch} | Iter {at} | loss 0.5" for epoch in (1, 2) for at in (0, 10, 20)]

    assert steps_of(*lines, "epoch 2.9 step 30 loss 0.4", "Epoch 3 | Iter 0 | loss 0.4")[-1] == 60
