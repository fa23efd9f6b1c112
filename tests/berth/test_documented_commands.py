"""Commands that the docs show are commands that the command line takes."""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from berth.cli.app import UsageError, app
from berth.shared.arguments import split_at_dashes

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"])
FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
SHELLS = frozenset({"", "sh", "bash", "console", "text"})
INLINE = re.compile(r"`(berth [^`\n]+)`")
COMMAND = re.compile(r"(?:\$ +)?(?:[A-Z_]+=\S+ +)*(berth(?: .*)?)")
ENDS = frozenset({"|", ">", ">>", "<", "&&", ";"})
PRINTS_AND_ENDS = frozenset({"--help", "-h", "--install-completion", "--show-completion"})


def documented(page: Path) -> Iterator[tuple[str, bool]]:
    """Each command of a page, and whether it stands in a block, whole; in a sentence it may be only its name."""
    text = page.read_text()
    for language, block in FENCE.findall(text):
        if language in SHELLS:
            lines = block.replace("\\\n", " ").splitlines()
            yield from ((hit[1], True) for line in lines if (hit := COMMAND.fullmatch(line.strip())))
    yield from ((command, False) for command in INLINE.findall(text))


def parse(command: Any, words: Sequence[str], parent: Any = None) -> None:
    """Read options and arguments as ``berth`` does, and run nothing.

    Raises:
        UsageError: the command line does not take them.
    """
    context = command.make_context(command.name or "berth", list(words), parent=parent)
    rest = [*context._protected_args, *context.args]
    if hasattr(command, "resolve_command") and rest:
        _, one, more = command.resolve_command(context, rest)
        parse(one, more, context)


def ours(line: str) -> list[str]:
    """The words of one command, up to a pipe and to those of the script."""
    words = shlex.split(line, comments=True)[1:]
    end = next((index for index, word in enumerate(words) if word in ENDS), len(words))
    return split_at_dashes(words[:end])[0]


def refusal(words: Sequence[str]) -> str:
    """What the command line says against these words; empty where it takes them."""
    if not PRINTS_AND_ENDS.isdisjoint(words):
        return ""
    try:
        parse(typer.main.get_command(app), words)
    except UsageError as error:
        said: str = error.format_message()
        return said
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_the_docs_have_only_options_that_there_are(page):
    refused = {line: (refusal(ours(line)), is_whole) for line, is_whole in documented(page)}

    # A sentence may name a command alone.
    assert {
        line: said
        for line, (said, is_whole) in refused.items()
        if said and (is_whole or "Missing" not in said)
    } == {}


def test_the_docs_show_many_commands():
    assert sum(is_whole for page in PAGES for _, is_whole in documented(page)) > 100


def test_a_wrong_option_is_noticed():
    assert "--gpu-memory" in refusal(ours("berth service run digits . --gpu-memory 4 -- python a.py"))
