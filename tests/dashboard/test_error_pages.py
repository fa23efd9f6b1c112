"""What the server answers where there is no page: it looks like the others, and says what to do."""

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.core.exceptions import PermissionDenied
from django.db import OperationalError
from django.test import Client, RequestFactory
from django.urls import reverse
from django.views.defaults import permission_denied

from orchestrator.api.http.errors import fail
from tests.dashboard.markup import html_of


def test_a_missing_page_keeps_the_frame_and_offers_a_way_on(reader, ada):
    answer = reader(ada).get("/no-such-page")

    html = html_of(answer)
    assert answer.status_code == 404
    assert "<title>Not found · Berth</title>" in html
    assert 'aria-label="Main"' in html
    assert html.count("<h1") == 1


def test_a_missing_page_shows_nothing_of_the_frame_to_who_is_not_signed_in(db, client, home):
    answer = client.get("/no-such-page")

    html = html_of(answer)
    assert answer.status_code == 404
    assert "There is no page at this address" in html
    assert 'aria-label="Main"' not in html


def test_a_refused_request_gets_a_sentence(reader, ada):
    request = reader(ada).get(reverse("overview")).wsgi_request

    answer = permission_denied(request, PermissionDenied())

    assert answer.status_code == 403
    assert "An administrator of this server can change its role." in html_of(answer)


@pytest.mark.parametrize("is_signed_in", [True, False])
def test_b65_a_form_without_its_token_is_answered_with_what_to_do(home, ada, is_signed_in):
    browser = Client(enforce_csrf_checks=True)
    if is_signed_in:
        browser.force_login(ada)

    answer = browser.post(reverse("login"), {"username": "ada"})

    html = html_of(answer)
    assert answer.status_code == 403
    assert "Reload the page and try again" in html
    assert ('aria-label="Main"' in html) is is_signed_in


def test_the_page_of_a_failure_needs_no_database_and_no_other_file(settings):
    answer = fail(RequestFactory().get("/"))  # the test has no database: a query would fail it

    html = html_of(answer)
    assert answer.status_code == 500
    assert "Jobs keep running" in html
    assert "/static/" not in html
    assert "<script" not in html


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (OperationalError("database or disk is full"), 507, "disk is full. Tell the operator"),
        (OperationalError("the connection was closed"), 503, "The database does not answer"),
        (RuntimeError("secret"), 500, "the log has the cause"),
    ],
)
def test_f52_a_page_that_cannot_be_made_says_why_where_it_is_known(
    home, ada, monkeypatch, error, status, sentence
):
    def save(session: SessionStore, *_: object, **__: object) -> None:
        raise error

    browser = Client(raise_request_exception=False)
    ada.set_password("correct horse battery")
    ada.save()
    monkeypatch.setattr(SessionStore, "save", save)

    answer = browser.post(reverse("login"), {"username": "ada", "password": "correct horse battery"})

    assert (answer.status_code, sentence in answer.text) == (status, True)
    assert "secret" not in answer.text


def test_a_page_that_fails_is_answered_with_the_page_of_a_failure(ada, home, monkeypatch):
    def fail(user: User) -> bool:
        raise RuntimeError("the database went away")

    browser = Client(raise_request_exception=False)
    browser.force_login(ada)
    monkeypatch.setattr(User, "is_authenticated", property(fail))

    answer = browser.get(reverse("overview"))

    assert answer.status_code == 500
    assert "Something failed" in html_of(answer)
