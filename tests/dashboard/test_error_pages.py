"""What the server answers where there is no page: it looks like the others, and says what to do."""

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.test import Client, RequestFactory
from django.urls import reverse
from django.views.defaults import permission_denied, server_error


def test_a_missing_page_keeps_the_frame_and_offers_a_way_on(reader, ada):
    answer = reader(ada).get("/no-such-page")

    html = answer.content.decode()
    assert answer.status_code == 404
    assert "<title>Not found · Berth</title>" in html
    assert 'aria-label="Main"' in html
    assert html.count("<h1") == 1


def test_a_missing_page_shows_nothing_of_the_frame_to_who_is_not_signed_in(db, client, home):
    answer = client.get("/no-such-page")

    html = answer.content.decode()
    assert answer.status_code == 404
    assert "There is nothing at this address" in html
    assert 'aria-label="Main"' not in html


def test_a_refused_request_gets_a_sentence(reader, ada):
    request = reader(ada).get(reverse("overview")).wsgi_request

    answer = permission_denied(request, PermissionDenied())

    assert answer.status_code == 403
    assert "An administrator of this server can change what it may do." in answer.content.decode()


@pytest.mark.parametrize("is_signed_in", [True, False])
def test_b65_a_form_without_its_token_is_answered_with_what_to_do(home, ada, is_signed_in):
    browser = Client(enforce_csrf_checks=True)
    if is_signed_in:
        browser.force_login(ada)

    answer = browser.post(reverse("login"), {"username": "ada"})

    html = answer.content.decode()
    assert answer.status_code == 403
    assert "load the page anew and send it again" in html
    assert ('aria-label="Main"' in html) is is_signed_in


def test_the_page_of_a_failure_needs_no_database_and_no_other_file():
    answer = server_error(RequestFactory().get("/"))  # the test has no database: a query would fail it

    html = answer.content.decode()
    assert answer.status_code == 500
    assert "The jobs go on" in html
    assert "/static/" not in html
    assert "<script" not in html


def test_a_page_that_fails_is_answered_with_the_page_of_a_failure(ada, home, monkeypatch):
    def fail(user: User) -> bool:
        raise RuntimeError("the database went away")

    browser = Client(raise_request_exception=False)
    browser.force_login(ada)
    monkeypatch.setattr(User, "is_authenticated", property(fail))

    answer = browser.get(reverse("overview"))

    assert answer.status_code == 500
    assert "Something failed" in answer.content.decode()
