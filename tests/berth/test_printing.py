"""Text that others wrote cannot steer the reader's terminal (T29)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.cli.printing import safe
from berth.cli.tables import box_line, holders_text, progress_text
from berth.client import Device, Job
from berth.client.connection import Connection


@pytest.mark.parametrize(
    "text",
    [
        "\x1b]0;a new title\x07",
        "\x1b]52;c;Y29weQ==\x1b\\",
        "\x1b[2J",
        "\x1b[?1049h",
        "\x1b[6n",
        "\x1bP1$r\x1b\\",
        "\x1bc",
        "\x9b2J",
        "\x07\x08",
    ],
)
def test_b53_control_sequences_are_removed(text):
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in safe(text))
    assert safe(f"before{text}").startswith("before")


def test_colours_of_a_log_are_kept_where_colours_are_wanted():
    assert safe("\x1b[31mred\x1b[0m\x1b[2K", colours=True) == "\x1b[31mred\x1b[0m"
    assert safe("\x1b[31mred\x1b[0m") == "red"


@given(st.text())
def test_no_text_gets_control_characters_through(text):
    left = {character for character in safe(text) if ord(character) < 32 or 127 <= ord(character) < 160}

    assert left <= {"\n", "\t", "\r"}


def device(state: str, sentence: str) -> Device:
    """A usable device that nobody holds, as the API tells of it."""
    return Device(
        {
            "label": "GPU 1", "name": "GPU", "usable": True, "state": "enabled", "health": "ok", "health_reason": "",
            "holders": [], "reading": None, "availability": {"state": state, "sentence": sentence},
        }
    )  # fmt: skip


def test_the_command_line_calls_a_device_free_only_where_a_job_could_start():
    kept = device("kept", "Kept for big-7b (dmitri), expected to start in 3 h.")

    assert holders_text(kept).plain == "Kept for big-7b (dmitri), expected to start in 3 h."
    assert holders_text(device("free", "Free.")).plain == "free"
    assert box_line([kept, device("free", "Free.")], []).startswith("1 of 2 devices free, 1 kept   0 running")
    assert box_line([kept], [], "0 of 1 GPUs free, 1 kept").startswith("0 of 1 GPUs free, 1 kept   0 running")


def test_progress_in_percent_is_said_once():
    def told(**progress: object) -> str:
        shown = {"fraction": 0.1, "step": 10, "total_steps": 100, **progress}
        return progress_text(Job({"progress": shown}, Connection("http://127.0.0.1:1", "a-token")))

    assert told(unit="percent") == "10%"
    assert told(unit="epoch") == "10% epoch 10/100"
    assert told(unit="percent", fraction=None, total_steps=None) == "percent 10"
