"""Files keep to one worker, and the dearest come first."""

from pathlib import Path

from tests.tools import turns

ROOT = Path(__file__).resolve().parents[2]


def test_every_named_file_is_there():
    named = {*turns.DEAREST, *turns.APART, *turns.TOGETHER, *turns.TOGETHER.values()}

    assert [file for file in named if not (ROOT / file).is_file()] == []


def test_tests_of_one_file_go_to_one_worker_unless_they_share_nothing():
    assert turns.turn_of("tests/store/test_trees.py::test_a[1::2]") == "tests/store/test_trees.py"
    assert turns.turn_of("tests/chaos/test_campaign.py::test_a") == "tests/chaos/test_campaign.py::test_a"


def test_files_that_share_a_server_go_to_one_worker():
    assert turns.turn_of("tests/berth/test_client.py::test_a") == turns.turn_of(
        "tests/berth/test_commands.py::test_b"
    )
