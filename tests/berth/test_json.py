"""JSON for programs, from every command."""

from collections.abc import Iterator

import typer

from berth.cli.app import app


def commands(group: typer.core.TyperGroup, name: str = "berth") -> Iterator[tuple[str, set[str]]]:
    """Each command below a group, with the options that it takes."""
    for each in group.commands.values():
        called = f"{name} {each.name}"
        yield called, {option for parameter in each.params for option in parameter.opts}
        if isinstance(each, typer.core.TyperGroup):
            yield from commands(each, called)


def test_every_command_offers_json() -> None:
    group = typer.main.get_group(app)

    found = dict(commands(group))

    assert len(found) > 25
    assert [name for name, options in found.items() if "--json" not in options] == []
