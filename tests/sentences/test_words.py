"""Every code has its words, and the words take the facts that product code gives."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import translation

from orchestrator.facts.endings import Ended
from orchestrator.facts.events import FederationFact, Happened, HealthFact, NoticeFact, ServiceFact, SweepFact
from orchestrator.facts.record import NOTHING, TOLD, Fact, fact, sentence_only
from orchestrator.scheduler.core import WaitCode
from orchestrator.sentences import TABLE, say
from orchestrator.sentences.waits import WAITS, say_wait

ROOT = Path(__file__).parents[2] / "orchestrator"
CODES = {
    "Happened": Happened,
    "HealthFact": HealthFact,
    "NoticeFact": NoticeFact,
    "Ended": Ended,
    "SweepFact": SweepFact,
    "ServiceFact": ServiceFact,
    "FederationFact": FederationFact,
}
OF_ANY_ENDING = {"met", "disk_full"}


def made_facts() -> Iterator[tuple[str, str, set[str], bool]]:
    """Each ``fact(Code.NAME, ...)`` of the product: where, its code, its names, and whether more may come."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Name(id="fact"),
                    args=[
                        ast.Attribute(
                            value=ast.Name(
                                id=(
                                    "Happened"
                                    | "HealthFact"
                                    | "NoticeFact"
                                    | "Ended"
                                    | "SweepFact"
                                    | "ServiceFact"
                                    | "FederationFact"
                                ) as kind
                            ),
                            attr=name,
                        )
                    ],
                    keywords=keywords,
                ):
                    names = {each.arg for each in keywords if each.arg}
                    more = any(each.arg is None for each in keywords)
                    yield f"{path.name}:{node.lineno}", str(CODES[kind][name]), names, more


@pytest.mark.parametrize("missing", [{"alone": "my train.py"}, {"alone": "my train.py", "module": "lab"}])
@pytest.mark.parametrize("language", ["en", "de"])
def test_a_command_in_a_sentence_can_be_copied_whatever_the_script_is_named(missing, language):
    with translation.override(language):
        said = say(fact(Ended.RAISED, rank=0, error="no", met=missing))

    assert "berth run . -e 'my train.py'." in said
    assert ("in its folder: berth" in said or "; there: berth" in said) == (language == "en")


def test_every_code_has_words():
    assert {
        *Happened,
        *HealthFact,
        *NoticeFact,
        *Ended,
        *SweepFact,
        *ServiceFact,
        *FederationFact,
    } == TABLE.keys()
    assert set(WaitCode) <= WAITS.keys()


def test_no_event_and_no_ending_share_a_code():
    assert not {str(code) for code in Happened} & {str(code) for code in Ended}
    assert TOLD not in {*Happened, *Ended}


def test_every_fact_that_is_made_has_the_names_that_its_words_take():
    made = list(made_facts())
    assert len(made) > 80

    for where, code, names, more in made:
        parameters = inspect.signature(TABLE[code]).parameters
        needed = {name for name, each in parameters.items() if each.default is each.empty}
        assert names - OF_ANY_ENDING <= parameters.keys(), (where, code)
        assert more or needed <= names, (where, code)


def test_every_code_is_made_somewhere():
    made = {code for _, code, _, _ in made_facts()}
    made |= {code for code in Happened if code.startswith("run_")}  # by a table in follow
    made |= {Happened.SUBMITTED}  # of all members of an array at once

    assert {
        *Happened,
        *HealthFact,
        *NoticeFact,
        *Ended,
        *SweepFact,
        *ServiceFact,
        *FederationFact,
    } - made == set()


def test_a_fact_comes_back_from_json_with_the_facts_in_it():
    inner = fact(Ended.KILLED, rank=1)
    outer = fact(Happened.LAUNCHED_AGAIN, ending=inner)

    again = Fact.read(outer.as_json())

    assert again == outer
    assert again.tells(inner)
    assert not again.tells(fact(Ended.KILLED, rank=2))
    assert say(again) == "Rank 1 was killed by SIGKILL from outside of Berth. Trying again."


def test_what_is_no_fact_says_nothing():
    values: list[object] = [None, {}, [], "text", {"facts": {}}]

    for value in values:
        assert Fact.read(value) == NOTHING
    assert say(NOTHING) == ""
    assert not sentence_only("")


def test_a_code_of_a_newer_version_is_said_as_it_is_called():
    assert say(Fact("gpu_was_stolen", {"by": "eve"})) == "Gpu was stolen."
    assert say_wait("moon_phase", {"phase": 3}, now_s=0.0) == "Waits: moon phase."


def test_a_wait_tells_the_range_of_now_and_not_of_the_last_pass():
    facts = {"gpus": 2, "device_kinds": ["gpu"], "free": 1, "first": "digits"}

    assert say_wait("devices", facts, now_s=0.0, ahead=3, when="within 34 min") == (
        "Waits for 2 GPUs; 1 is free. digits and 2 more are ahead. Expected within 34 min."
    )
    assert say_wait("devices", facts, now_s=0.0, ahead=1) == ("Waits for 2 GPUs; 1 is free. digits is ahead.")


def test_a_sentence_of_an_earlier_version_is_said_as_it_stands():
    assert say(sentence_only("It ended.")) == "It ended."
    assert say_wait("devices", {"sentence": "Waits for 1 GPU."}, now_s=0.0) == "Waits for 1 GPU."


def test_long_texts_of_a_script_are_cut():
    assert len(fact(Ended.RAISED, error="x" * 100_000, rank=0).facts["error"]) == 1000
