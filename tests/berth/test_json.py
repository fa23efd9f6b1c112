"""JSON for programs, from every command."""

import gc
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from berth.cli.app import app, start
from berth.shared.words import SERVER_COMMANDS

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")  # see answer_of
WRONG_USE, TERMINATED = 2, 143
# The job was cancelled before it had a checkpoint.
STATUSES = {
    "berth resume {first}": WRONG_USE,
    "berth profile {first}": WRONG_USE,  # it does not run
    "berth envs remove 0123": WRONG_USE,  # nothing was installed
    # The server has no CPU slot for the job that adds up what sites learned.
    "berth federated run train.py --model train.py:build --data-from train.py:data --sites 3": WRONG_USE,
    "berth federated show 01234567": WRONG_USE,  # there is none
    "berth federated stop 01234567": WRONG_USE,
    "berth federated invite 01234567 clinic-b": WRONG_USE,
    "berth federated revoke 01234567 clinic-b": WRONG_USE,
    "berth federated join https://berth.example.org/federated train.py --model train.py:build": WRONG_USE,
    "berth session wake {session}": WRONG_USE,  # it is not asleep
    "berth watch {first}": TERMINATED,
}


def commands(group: typer.core.TyperGroup, name: str = "berth") -> Iterator[tuple[str, set[str]]]:
    """Each command below a group, with the options that it takes."""
    for each in group.commands.values():
        called = f"{name} {each.name}"
        yield called, {option for parameter in each.params for option in parameter.opts}
        if isinstance(each, typer.core.TyperGroup):
            yield from commands(each, called)


ALL = dict(commands(typer.main.get_group(app)))
# They replace this process by the server's own command line, which prints for its operator.
OF_THE_SERVER = {f"berth {name}" for name in (*SERVER_COMMANDS, "manage")}
# What they print is the job's own: a terminal, the bytes of a connection.
INTO_A_JOB = {"berth shell", "berth ssh", "berth forward", "berth connect"}
EVERY = {name: options for name, options in ALL.items() if name not in OF_THE_SERVER | INTO_A_JOB}
# One after the other; {first} and {second} are what the first two lines submitted.
CALLS = """
berth run train.py
berth run train.py -n second
berth move {first} --behind {second}
berth again {first}
berth plan train.py
berth ps
berth top --once
berth show {first}
berth why {first}
berth hold {first}
berth release {first}
berth cancel {first}
berth resume {first}
berth watch {first}
berth logs tiny-gpt -n 1
berth compare {first} {second}
berth pull eval --to fetched
berth checkpoints {first}
berth media {first}
berth profile {first}
berth data
berth data list
berth data ls
berth data push json-pushed train.py
berth data rm json-pushed
berth model
berth model list
berth model ls
berth model add json-model eval
berth model show json-model
berth model rm json-model
berth model add json-model eval
berth model add json-other eval
berth model evaluate json-model
berth model export json-model
berth model quantize json-model
berth model prune json-model
berth model distil json-model --student model.py:build
berth model average json-model json-other
berth model ensemble json-model json-other
berth model explain json-model
berth model recipes json-model
berth model serve json-model --name json-served
berth service remove json-served
berth envs
berth envs list
berth envs remove 0123
berth envs clear
berth sweep train.py --set lr=log:1e-5..1e-1 --metric loss --direction minimize --budget 1h
berth sweeps
berth best {sweep}
berth federated run train.py --model train.py:build --data-from train.py:data --sites 3
berth federated
berth federated list
berth federated show 01234567
berth federated stop 01234567
berth federated invite 01234567 clinic-b
berth federated revoke 01234567 clinic-b
berth federated join https://berth.example.org/federated train.py --model train.py:build
berth session start --command true --at 2h
berth service run json-service train.py --command true
berth service
berth service list
berth service show json-service
berth service change json-service --most 2
berth service key json-service who
berth service stop json-service
berth service start json-service
berth service remove json-service
berth session
berth session list
berth session wake {session}
berth session stop {session}
berth data add json-digits digits.csv.gz --root examples
berth gpu 0
berth usage
berth drain 3
berth drain 3 --undo
berth calendar
berth calendar list
berth calendar add course -d 1 --for ada --from 2h --until 3h
berth calendar change {made} --note moved
berth calendar remove {made}
berth secret
berth secret list
berth secret set JSON_TEST
berth secret forget JSON_TEST
berth note {first} good --step 1
berth note {first}
berth share {first}
berth share --list
berth share --end {link}
berth project make json-project
berth project add json-project ada
berth project show json-project
berth project
berth project list
berth project drop json-project ada
berth project remove json-project
berth skill
berth mcp
berth login {url} --token {token}
berth logout
"""


def test_every_command_offers_json() -> None:
    assert len(EVERY) > 25
    assert [name for name, options in EVERY.items() if "--json" not in options] == []


def test_only_commands_whose_words_are_of_another_offer_no_json() -> None:
    silent = (OF_THE_SERVER - {"berth status"}) | INTO_A_JOB

    assert {name for name, options in ALL.items() if "--json" not in options} == silent


@pytest.fixture
def answer_of(web, plain, monkeypatch, capsys, tmp_path) -> Callable[..., str]:
    """What a command prints in this process, as root, who is an operator and has no jobs of the seed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERTH_URL", web.url)
    monkeypatch.setenv("BERTH_TOKEN", web.tokens["root"])
    (tmp_path / "train.py").write_text("print('step 1 loss 0.5')\n")

    gc.collect()
    gc.freeze()  # what all tests of a run have loaded: each look through it takes a second

    def call(line: str, *, status: int = 0) -> str:
        words = line.split()[1:]
        monkeypatch.setattr(sys, "argv", ["berth", *words])
        monkeypatch.setattr(sys, "stdin", Path(__file__).open())  # noqa: SIM115  # a secret's value; closed below
        with sys.stdin, pytest.raises(SystemExit) as ended:
            start(words)
        code = int(ended.value.code or 0)
        del ended  # its frames hold the client
        gc.collect()  # a command ends with its process, which closes its connections
        shown = capsys.readouterr()
        assert code == status, f"{line}: {shown.err}"
        return str(shown.err if status == WRONG_USE else shown.out)

    return call


@pytest.mark.slow
def test_every_command_prints_json_and_nothing_else(web, answer_of) -> None:
    names = {"url": web.url, "token": web.tokens["root"]}
    lines = [line for line in CALLS.splitlines() if line]
    assert {name for line in lines for name in EVERY if f"{line} ".startswith(f"{name} ")} == set(EVERY)

    for line in lines:
        status = STATUSES.get(line, 0)
        answer = json.loads(answer_of(f"{line.format(**names)} --json", status=status))
        for name, begins in (
            ("first", "berth run train.py"),
            ("second", "berth run train.py -n"),
            ("made", "berth calendar add"),
            ("sweep", "berth sweep train.py"),
            ("link", "berth share {first}"),
            ("session", "berth session start"),
        ):
            if line.startswith(begins):
                names.setdefault(name, answer["id"])
    for each in json.loads(answer_of("berth ps --mine --state queued --json")):
        answer_of(f"berth cancel {each['id']} --json")


@pytest.mark.parametrize(
    "line",
    [
        "berth run train.py --lr 3e-4 --json",
        "berth nothing --json",
        "berth --nothing --json",
        "berth gpu --json",
    ],
)
def test_a_command_line_that_cannot_be_read_is_answered_in_json_too(line: str, answer_of) -> None:
    said = json.loads(answer_of(line, status=WRONG_USE))

    assert set(said) == {"error", "status", "code", "fields"}


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("berth run train.py --lr 3e-4", "berth run train.py -- --lr 3e-4"),
        ("berth run -g2 train.py --lr=3e-4 --json", "berth run -g2 train.py --json -- --lr=3e-4"),
        ("berth run train.py data", "berth run train.py -- data"),
        ("berth again --lr 3e-4", "berth again -- --lr 3e-4"),
    ],
)
def test_arguments_of_a_script_without_dashes_are_answered_with_the_line_that_was_meant(
    line: str, meant: str, answer_of
) -> None:
    said = " ".join(answer_of(line, status=WRONG_USE).replace("\u2502", " ").split())

    assert f"Arguments of the script come after --: {meant}" in said


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("berth run python train.py --lr 3e-4", "berth run -- python train.py --lr 3e-4"),
        ("berth run -n fit -g2 bash run.sh", "berth run -n fit -g2 -- bash run.sh"),
    ],
)
def test_a_program_without_dashes_is_answered_with_the_line_that_was_meant(
    line: str, meant: str, answer_of
) -> None:
    said = " ".join(answer_of(line, status=WRONG_USE).replace("\u2502", " ").split())

    assert f"A program comes after --: {meant}" in said


def test_a_script_of_a_programs_name_is_asked_for_first(answer_of, tmp_path) -> None:
    (tmp_path / "sort.py").touch()

    said = " ".join(answer_of("berth run sort --lr 1", status=WRONG_USE).replace("\u2502", " ").split())

    assert "Was sort.py meant? berth run sort.py -- --lr 1" in said
