"""Sentences from facts in German: every text has its translation, and REST, commands and mails stay English."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from django.utils import translation

from berth.shared import words
from deploy.translations import catalog
from orchestrator.facts.endings import Ended
from orchestrator.facts.events import FederationFact, Happened
from orchestrator.facts.record import fact
from orchestrator.jobs.launch import isolation
from orchestrator.models import AdminState, Device, JobState
from orchestrator.sentences import say
from orchestrator.sentences.waits import say_wait
from tests.sentences.sentence_texts import said_in, texts_in
from tests.system.server import REPOSITORY

MODULES = [
    *sorted((REPOSITORY / "orchestrator/sentences").glob("*.py")),
    REPOSITORY / "berth/shared/words.py",
]
GERMAN = catalog(REPOSITORY / "orchestrator/locale/de")
ELSEWHERE = (
    REPOSITORY / "orchestrator/api/resources/search.py",
    *sorted((REPOSITORY / "dashboard/templatetags").glob("*.py")),
    REPOSITORY / "dashboard/live/problems.py",
    REPOSITORY / "orchestrator/jobs/launch/isolation.py",
    REPOSITORY / "orchestrator/scheduler/waiting.py",
    REPOSITORY / "orchestrator/scheduler/forecast/planning.py",
    REPOSITORY / "orchestrator/scheduler/forecast/training_preview.py",
    REPOSITORY / "orchestrator/scheduler/forecast/wording.py",
    REPOSITORY / "orchestrator/scheduler/passes/restrictions.py",
)
FOR_PROGRAMS = {
    "%Y-%m-%d %H:%M",
    "berth manage ",
    "uv pip install --torch-backend auto --reinstall-package torch torch",
}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_text_of_a_sentence_has_its_german(path: Path):
    assert sorted(text for text in texts_in(path) - FOR_PROGRAMS if not GERMAN.get(text)) == []


@pytest.mark.parametrize("path", ELSEWHERE, ids=lambda path: path.stem)
def test_a_text_beside_the_sentences_has_its_german(path: Path):
    assert sorted(text for text in said_in(path) if not GERMAN.get(text)) == []


def test_the_levels_of_the_sandbox_are_described_in_german():
    def described() -> list[Mapping[str, object]]:
        levels = [isolation.describe(level, list(isolation.WALLS)) for level in range(len(isolation.LEVELS))]
        return [level for level in levels if level is not None]

    with translation.override("de"):
        german = described()

    for here, there in zip(german, described(), strict=True):
        assert here["walls"] != there["walls"]
        assert not {here["name"], here["stops"], here["does_not_stop"]} & set(map(str, there.values()))


def test_a_waiting_job_says_why_in_german():
    facts = {"gpus": 2, "free": 1, "device_kinds": ["sim"], "kept": 1, "kept_for": "vit", "first": "bert"}

    with translation.override("de"):
        said = say_wait("devices", facts, now_s=0.0, ahead=3, when=words.span(360, 540))

    assert said == (
        "Wartet auf 2 simulierte GPUs; 1 ist frei, 1 ist freigehalten für vit. "
        "bert und 2 weitere sind davor. Erwartet in 6 bis 9 min."
    )
    assert say_wait("devices", facts, now_s=0.0).startswith(
        "Waits for 2 simulated GPUs; 1 is free, 1 is kept"
    )


def test_a_federation_that_failed_at_its_start_says_so_in_german():
    failed = fact(FederationFact.FAILED_AT_START)

    with translation.override("de"):
        german = say(failed)

    assert german == "Durch einen Fehler beim Start gestoppt, mit allen Jobs."
    assert say(failed) == "Stopped by an error at its start, with all its jobs."


def test_a_history_is_said_in_the_language_of_whoever_reads_it():
    ending = fact(Ended.RAISED, error="KeyError: 'x'", rank=1)
    retried = fact(Happened.RETRIED, ending=ending.as_json(), failure=1, retries=3, delay_s=0)

    with translation.override("de"):
        german = say(retried)

    assert german == "Das Skript warf auf Rang 1 KeyError: 'x'. Wiederholung 1 von 3 jetzt."
    assert say(retried) == "The script raised KeyError: 'x' on rank 1. Retry 1 of 3 now."


def test_devices_of_other_servers_are_listed_in_german():
    labels = ["gpu2: simulated GPU 0", "gpu2: simulated GPU 1", "gpu3: CPU slot 1"]

    with translation.override("de"):
        said = words.listed(labels)

    assert said == "gpu2: simulierte GPUs 0, 1, gpu3: CPU-Platz 1"


@pytest.mark.django_db
def test_the_palette_finds_places_and_actions_by_german_words(home, client, ada, make_job):
    job = make_job(name="digits", owner=ada)
    client.force_login(ada)
    client.cookies["berth_language"] = "de"

    def found(typed: str) -> list[tuple[str, str]]:
        hits = client.get("/api/v1/search", {"q": typed}).json()["results"]
        return [(hit["title"], hit["detail"]) for hit in hits]

    assert ("Warteschlange", "dorthin") in found("warte")
    assert ("digits abbrechen", f"#{job.short_id} wartet") in found("abbrechen digits")
    assert ("digits abbrechen", f"#{job.short_id} wartet") in found("cancel digits")


@pytest.mark.django_db
def test_a_device_is_enabled_by_the_german_word_of_its_page_which_is_not_that_of_jobs(
    home, client, root, make_job, make_device
):
    make_job(owner=root, state=JobState.HELD)
    device = make_device(0)
    Device.objects.update(admin_state=AdminState.DRAINING)
    client.force_login(root)
    client.cookies["berth_language"] = "de"
    word = GERMAN["Enable"]

    hits = client.get("/api/v1/search", {"q": f"{word} GPU 0"}).json()["results"]
    page = client.get(f"/devices/{device.pk}").content.decode()

    assert [hit["title"] for hit in hits if hit["kind"] == "action"] == ["simulierte GPU 0 aktivieren"]
    assert word in page
    assert GERMAN["Release"] != word
