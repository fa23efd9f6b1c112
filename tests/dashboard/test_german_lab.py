"""The pages of people, pools, devices and the server in German, and those to sign in; forms send what programs read."""

import re
from datetime import date

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import translation
from django.utils.formats import date_format

from deploy.translations import catalog
from orchestrator.models import PoolRight, Right
from orchestrator.people import second_factor, tokens
from tests.dashboard.markup import html_of
from tests.dashboard.test_second_factor import code_of
from tests.sentences.sentence_texts import said_in
from tests.system.server import REPOSITORY

GERMAN = catalog(REPOSITORY / "orchestrator/locale/de")
PARTS = ("health", "server_parts")
PAGES = {
    "account": ("Konto", "Noch keine Geheimnisse.", "ein Job startet"),
    "second-factor": ("Zweiter Faktor", "App für Codes"),
    "people": ("Personen", "Jemanden einladen", "Nutzer"),
    "pools": ("Pools", "Speicher belegt", "Niemand hat eigene Rechte in diesem Pool."),
    "bookings": ("Buchungen", "In dieser Woche ist nichts gebucht"),
    "usage": ("Nutzung", "nach Person, die letzten 30 Tage"),
    "server": (
        "Server",
        "Teile des Servers",
        "beobachtet Geräte und Jobs",
        "beantwortet diese Seite; gestartet",
    ),
    "audit": ("Audit", "wer was getan hat"),
    "environments": ("Umgebungen", "Für eigene Jobs sind keine Pakete installiert"),
    "datasets": ("Datensätze", "Noch keine Datensätze"),
    "benchmarks": ("Benchmarks", "eine Kopie auf jedem Gerät"),
}


@pytest.fixture
def in_german(reader):
    """The browser of somebody who chose German."""

    def make(user: User | None) -> Client:
        browser = Client() if user is None else reader(user)
        browser.cookies["berth_language"] = "de"
        return browser

    return make


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_lab_speaks_german(in_german, root, make_device, write_readings, page):
    write_readings(make_device(0).pk)

    html = html_of(in_german(root).get(reverse(page)))

    heading, *sentences = PAGES[page]
    assert f"<h1>{heading}</h1>" in html
    assert [sentence for sentence in sentences if sentence not in html] == []


def test_a_device_is_described_in_german(in_german, root, make_device, write_readings):
    device = make_device(0)
    write_readings(device.pk)

    html = html_of(in_german(root).get(reverse("device", args=[device.pk])))

    assert "<h1>simulierte GPU 0</h1>" in html
    assert "<dt>Speicher</dt>" in html
    assert "Beim Leeren laufen Jobs zu Ende, und nichts Neues startet." in html


@pytest.mark.parametrize(
    ("page", "choices"),
    [
        ("people", {"viewer": "Betrachter", "submitter": "Nutzer", "operate": "betreiben"}),
        ("account", {"admin": "Admin", "slack": "Slack, über einen Webhook"}),
        ("pools", {"none": "keine", "submit": "abschicken"}),
        ("bookings", {"reservation": "Reservierung", "maintenance": "Wartung"}),
    ],
)
def test_choices_in_german_send_what_programs_read(in_german, root, make_pool, page, choices):
    make_pool("a100")

    html = html_of(in_german(root).get(reverse(page)))

    found = dict(re.findall(r'<option value="(\w+)"[^>]*>([^<]+)', html))
    assert choices.items() <= found.items()


def test_a_right_and_a_token_are_named_in_german(in_german, root, ada, make_pool):
    PoolRight.objects.create(pool=make_pool("a100"), user=ada, right=Right.SUBMIT)
    tokens.issue(root, name="laptop", scope="write", life_s=None)
    browser = in_german(root)

    assert "darf darin Jobs abschicken" in html_of(browser.get(reverse("pools")))
    assert 'data-label="Umfang">schreiben</td>' in html_of(browser.get(reverse("account")))


def test_signing_in_is_refused_in_german(in_german, ada):
    answer = in_german(None).post(reverse("login"), {"username": "ada", "password": "wrong"})

    html = html_of(answer)
    assert "<h1>Anmelden</h1>" in html
    assert "Bitte Benutzername und Passwort eingeben" in html


def test_a_wrong_second_factor_is_refused_in_german(in_german, ada):
    secret = second_factor.new_secret()
    second_factor.add_app(ada, secret, code_of(secret), address="")
    browser = in_german(None)
    browser.post(reverse("login"), {"username": "ada", "password": "ada's password"})

    html = html_of(browser.post(reverse("sign-in-factor"), {"code": "000000"}))

    assert "Dieser Code ist falsch oder schon benutzt. Noch einmal versuchen" in html


@pytest.mark.parametrize("name", PARTS)
def test_what_a_part_of_the_server_says_has_its_german(name):
    texts = said_in(REPOSITORY / f"orchestrator/api/resources/{name}.py")

    assert sorted(text for text in texts if not GERMAN.get(text)) == []


def test_no_text_of_a_page_takes_the_name_of_a_month():
    with translation.override("de"):
        assert date_format(date(2026, 5, 1), "F M") == "Mai Mai"
