"""What `berth ssh` takes for options of ssh, and what for a command."""

import pytest

from berth.cli.shell_commands import split


@pytest.mark.parametrize(
    ("words", "options", "command"),
    [
        ("", "", []),
        ("nvidia-smi", "", ["nvidia-smi"]),
        ("nvidia-smi -l 1", "", ["nvidia-smi -l 1"]),
        ("-L 8080:localhost:80", "-L 8080:localhost:80", []),
        ("-L8080:localhost:80 true", "-L8080:localhost:80", ["true"]),
        ("-vN -o LogLevel=ERROR ls -l", "-vN -o LogLevel=ERROR", ["ls -l"]),
        ("-tL 1:b:2 -- -odd", "-tL 1:b:2", ["-odd"]),
        ("-p", "-p", []),
    ],
)
def test_options_come_before_the_command(words: str, options: str, command: list[str]) -> None:
    assert split(words.split()) == (options.split(), command)


def test_several_words_arrive_as_they_were_given_and_one_is_a_line_for_the_shell() -> None:
    assert split(["sh", "-c", "echo a  b"]) == ([], ["sh -c 'echo a  b'"])
    assert split(["echo $HOME | wc"]) == ([], ["echo $HOME | wc"])
