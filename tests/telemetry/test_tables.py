"""Tables of several kinds, and lines between them that are none."""

from orchestrator.agent.telemetry.printed_lines import LineParser
from tests.telemetry.lines import last_of, steps_of, values_of

FENCE = "-----------------  -----------"


def test_names_and_values_in_two_columns_are_one_row():
    found = last_of(
        f"{FENCE}\ntrainer/QF1 Loss        0.123\nbuffer/filled            2000\nEpoch                       7\n{FENCE}"
    )

    assert (found.step, found.unit) == (7, "epoch")
    assert found.values == {"trainer/QF1_Loss": 0.123, "buffer/filled": 2000.0}


def test_a_table_of_two_columns_without_its_last_border_hides_no_training():
    lines = ["name       value", FENCE, "lr         0.001", "", "Epoch 3 loss 0.5", "Epoch 4 loss 0.4"]

    assert steps_of(*lines) == [3, 4]


def test_a_table_of_two_columns_ends_at_any_other_line():
    assert steps_of(FENCE, "batch     12", "Epoch 3 loss 0.5", "Epoch 4 loss 0.4") == [3, 4]


def test_columns_with_the_same_name_have_that_of_the_line_below():
    parser = LineParser()
    for line in ("|  Epoch  |  Iter   |  Test  |  Test  |", "|         |         |  Acc   |  Loss  |"):
        parser.feed(line)

    assert values_of(parser, "|       2 |      10 |  0.91  |  0.31  |").values == {
        "Test_Acc": 0.91,
        "Test_Loss": 0.31,
    }


def test_an_empty_row_changes_no_names():
    parser = LineParser()
    for line in ("| Epoch | Loss | Acc |", "|       | low  | high |"):
        parser.feed(line)

    assert values_of(parser, "| 2 | 0.5 | 0.9 |").values == {"Loss": 0.5, "Acc": 0.9}


def test_a_metric_for_all_parts_of_a_run_is_read_by_their_columns():
    lines = ["Epoch 1 loss 0.5", "│          │   train │   test │", "│ accuracy │  0.8123 │ 0.7012 │"]

    assert last_of("\n".join(lines)).values == {"train_accuracy": 0.8123, "test_accuracy": 0.7012}


def test_a_row_of_things_that_are_no_parts_is_nothing():
    assert steps_of(
        "step 5 loss 0.5", "│          │   cats  │  dogs  │", "│ accuracy │  0.8123 │ 0.7012 │"
    ) == [5]
