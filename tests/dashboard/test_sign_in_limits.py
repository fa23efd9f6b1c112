"""Guessing passwords is slow, sessions end, and both are written down."""

import time

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from orchestrator.models import AuditEntry, SignInFailure
from orchestrator.people import sign_in_limits

RIGHT = "ada's password"


@pytest.fixture
def sign_in(home, ada):
    def send(
        name: str = "ada",
        password: str = "wrong",  # noqa: S107  # a wrong one
        address: str = "10.0.0.1",
        client: Client | None = None,
    ):
        client = client or Client(REMOTE_ADDR=address)
        return client.post(reverse("login"), {"username": name, "password": password}, REMOTE_ADDR=address)

    return send


@pytest.mark.parametrize("name", ["ada", "nobody"])
def test_t08_ten_wrong_passwords_shut_the_door_alike_for_known_and_unknown_names(sign_in, name):
    answers = [sign_in(name) for _ in range(11)]

    assert {answer.status_code for answer in answers[:10]} == {200}
    assert answers[10].status_code == 429
    assert 0 < int(answers[10]["Retry-After"]) <= 900
    assert b"Too many wrong passwords; try again in" in answers[10].content
    assert b"correct" in answers[0].content
    shown = answers[0].content.replace(name.encode(), b"")
    assert b"nobody" not in shown


def test_t08_not_even_the_right_password_helps_before_the_time_is_over(sign_in):
    for _ in range(10):
        sign_in("ada")

    assert sign_in("ada", RIGHT).status_code == 429
    assert sign_in("ADA", RIGHT).status_code == 429
    assert sign_in("ada", RIGHT, address="10.0.0.2").status_code == 302  # its owner is elsewhere
    SignInFailure.objects.update(at=timezone.now() - sign_in_limits.WINDOW)
    assert sign_in("ada", RIGHT).status_code == 302


def test_t08_one_address_cannot_try_everybody(sign_in):
    now = timezone.now()
    for number in range(sign_in_limits.MOST_OF_ADDRESS):
        sign_in_limits.note_failure(f"user-{number}", "10.0.0.1", now)

    assert sign_in("ada", RIGHT).status_code == 429


@pytest.mark.parametrize("name", ["ada", "nobody"])
def test_t08_an_account_cannot_be_tried_from_ever_new_addresses(sign_in, name):
    """What a proxy says of addresses, a job beside it can say too."""
    sign_in("ada", RIGHT, address="10.0.9.9")
    now = timezone.now()
    for number in range(sign_in_limits.MOST_FROM_EVERYWHERE):
        sign_in_limits.note_failure(name, f"10.1.0.{number}", now)

    assert sign_in(name, RIGHT, address="10.0.0.1").status_code == 429
    assert sign_in("ada", RIGHT, address="10.0.9.9").status_code == 302  # its owner was here before


def test_a_right_password_clears_the_count(sign_in):
    for _ in range(9):
        sign_in("ada")
    assert sign_in("ada", RIGHT).status_code == 302

    assert [sign_in("ada").status_code for _ in range(2)] == [200, 200]


def test_the_admins_form_is_the_same_door(client, home, db):
    answer = client.get("/admin/login/?next=/admin/")

    assert answer["Location"] == "/login?next=/admin/"


def test_sign_ins_are_written_down(sign_in):
    sign_in("ada")
    client = Client()
    sign_in("ada", RIGHT, client=client)
    client.post(reverse("logout"))

    rows = AuditEntry.objects.order_by("pk").values_list("actor", "action", "address")
    assert list(rows) == [
        ("ada", "sign_in.failed", "10.0.0.1"),
        ("ada", "sign_in.done", "10.0.0.1"),
        ("ada", "sign_in.ended", "127.0.0.1"),
    ]
    assert not AuditEntry.objects.filter(text__contains="wrong_password").exists()


def test_t06_a_sign_in_rotates_the_session(sign_in, client):
    client.cookies["berth_session"] = "a" * 32
    sign_in("ada", RIGHT, client=client)

    assert client.session.session_key not in {None, "a" * 32}


def test_t06_a_session_ends_when_it_is_idle_or_old(sign_in, client, settings, monkeypatch):
    sign_in("ada", RIGHT, client=client)
    assert client.get(reverse("overview")).status_code == 200
    assert 0 < client.session.get_expiry_age() <= settings.SESSION_COOKIE_AGE + 1
    real, hour_s = time.time, 3600
    for days in range(1, 30):  # somebody who looks every day
        monkeypatch.setattr(time, "time", lambda days=days: real() + days * 24 * hour_s)
        assert client.get(reverse("overview")).status_code == 200
    monkeypatch.setattr(time, "time", lambda: real() + 30 * 24 * hour_s + 60)

    assert client.get(reverse("overview"))["Location"].startswith("/login")


def test_t06_shutting_an_account_deletes_its_sessions(sign_in, client, bob):
    sign_in("ada", RIGHT, client=client)
    other = Client()
    other.force_login(bob)
    user = User.objects.get(username="ada")

    user.is_active = False
    user.save()

    assert not client.session.exists(client.cookies["berth_session"].value)
    assert other.get(reverse("overview")).status_code == 200
