"""Models, services, sweeps and reports in German: words that stand in tables of the code, and who a report speaks to."""

from collections.abc import Iterator

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.pages import federated, models, sessions, share, sweep_form
from dashboard.parts import recipe_forms, recipe_reports, service_fields
from deploy.translations import catalog
from orchestrator.api.resources.sweep_view import SETTINGS_IGNORED
from orchestrator.models import FederationState, LinkKind, MemberRole, ServiceState, Visibility
from orchestrator.sharing import links
from orchestrator.sweeps.core.ready import READY
from tests.dashboard.markup import html_of
from tests.system.server import REPOSITORY

GERMAN = catalog(REPOSITORY / "orchestrator/locale/de")


def words_of_recipes() -> Iterator[str]:
    common = [
        recipe_forms.GATE,
        recipe_forms.NAME,
        recipe_forms.BUILDS,
        recipe_forms.DATA,
        recipe_forms.EVALUATE,
    ]
    for form in recipe_forms.FORMS:
        yield from (form.title, form.about)
    for field in [*common, *(field for form in recipe_forms.FORMS for field in form.fields)]:
        yield from (field.label, field.hint)
    yield from (text for _, text in (*recipe_forms.GPUS, *models.RECIPE_CHOICES))
    yield from (text for _, text in recipe_reports.LOOKS.values())


def words_of_services() -> Iterator[str]:
    for field in service_fields.RULES:
        yield from (field.label, f"{field.help}.", field.empty)
    yield from ServiceState.values


def words_of_sweeps() -> Iterator[str]:
    yield SETTINGS_IGNORED
    for ready in READY.values():
        yield from (ready.title.lower(), ready.help)
    yield from (str(text) for _, text, _ in sweep_form.KINDS)


def words_of_sharing() -> Iterator[str]:
    yield from (*links.SECTIONS, *links.SECTIONS.values(), *share.LIVES.values(), *MemberRole.values)
    yield from (text for _, text in Visibility.choices)


def words_of_sessions_and_federations() -> Iterator[str]:
    yield from (text for texts in sessions.SIGNS.values() for text in texts)
    yield from (text for _, text in federated.LIVES)
    yield from (*FederationState.values, "invited", "joined", "expired", "revoked")


@pytest.mark.parametrize(
    "words",
    [
        words_of_recipes,
        words_of_services,
        words_of_sweeps,
        words_of_sharing,
        words_of_sessions_and_federations,
    ],
)
def test_every_word_of_a_table_has_its_german(words):
    assert sorted(text for text in words() if text and not GERMAN.get(text)) == []


@pytest.fixture
def job(home, make_job, ada):
    return make_job(ada, name="digits")


def opened(client, address):
    return client.get(address, headers={"Accept-Language": "de-AT,de;q=0.9,en;q=0.5"})


def test_a_link_speaks_the_language_of_who_opens_it(job, ada):
    text = links.make(ada, kind=LinkKind.JOB, jobs=[job])[1]
    address = reverse("shared", args=[text])

    german, english = opened(Client(), address), Client().get(address)

    assert '<html lang="de">' in html_of(german)
    assert "Noch nicht gestartet." not in html_of(german), "the link shows no attempts"
    assert "lief 0 s in 0 Anläufen." in " ".join(html_of(german).split())
    assert '<html lang="en">' in html_of(english)
    assert "ran 0 s in 0 attempts." in " ".join(html_of(english).split())


def test_a_report_as_a_file_speaks_the_language_of_who_saves_it(job, reader, ada):
    saved = opened(reader(ada), f"{reverse('job-report', args=[job.pk])}?download")

    assert "attachment" in saved["Content-Disposition"]
    assert '<html lang="de">' in html_of(saved)
    assert "Noch nicht gestartet." in html_of(saved)
