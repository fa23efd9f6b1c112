"""Passwords of Berth's own: the reader changes theirs, and chooses one at sign-in when somebody else set it."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from orchestrator.exceptions import Conflict
from orchestrator.models import AuditEntry, Person, Role, Token
from orchestrator.people import passwords, sign_in_limits
from tests.dashboard.markup import html_of

pytestmark = pytest.mark.django_db

OLD, NEW = "difference engine no. 1", "difference engine no. 2"


@pytest.fixture
def ada(ada: User) -> User:
    ada.set_password(OLD)
    ada.save()
    return ada


def sign_in(name: str, password: str, to: str = "") -> tuple[Client, Any]:
    browser = Client()
    return browser, browser.post("/login", {"username": name, "password": password, "next": to})


def is_in(browser: Client) -> bool:
    return browser.get("/account").status_code == 200


def test_a_person_changes_their_password_and_other_browsers_are_out(ada, home):
    here, elsewhere = sign_in("ada", OLD)[0], sign_in("ada", OLD)[0]

    answer = here.post("/account/password", {"current": OLD, "new": NEW})

    assert answer.status_code == 302
    assert is_in(here)
    assert not is_in(elsewhere)
    assert sign_in("ada", OLD)[1].status_code == 200, "the old password is refused"
    assert is_in(sign_in("ada", NEW)[0])
    assert AuditEntry.objects.get(action="person.password").text == "Changed their own password."


@pytest.mark.parametrize(
    ("current", "new", "sentence"),
    [
        ("wrong", NEW, "This is not your current password."),
        (OLD, "short", "too short"),
        (OLD, "password", "too common"),
        (OLD, OLD, "This is the password you have."),
        ("", NEW, "This is not your current password."),
    ],
)
def test_a_change_that_cannot_be_leaves_the_password_and_says_why(current, new, sentence, ada, reader):
    answer = reader(ada).post("/account/password", {"current": current, "new": new})

    assert answer.status_code == 400
    assert sentence in html_of(answer)
    ada.refresh_from_db()
    assert ada.check_password(OLD)


def test_guesses_of_the_current_password_are_slowed_down_like_those_at_sign_in(ada, reader):
    browser = reader(ada)
    for _ in range(sign_in_limits.MOST_OF_ACCOUNT):
        browser.post("/account/password", {"current": "wrong", "new": NEW})

    answer = browser.post("/account/password", {"current": OLD, "new": NEW})

    assert answer.status_code == 429
    assert "Too many wrong passwords" in html_of(answer)


def test_a_viewer_changes_their_own_password(ada, reader):
    Person.objects.create(user=ada, role=Role.VIEWER)

    assert reader(ada).post("/account/password", {"current": OLD, "new": NEW}).status_code == 302


def test_people_of_an_identity_provider_are_sent_there(bob, reader):
    bob.set_unusable_password()
    bob.save()
    browser = reader(bob)

    assert "Your identity provider keeps your password" in html_of(browser.get("/account"))
    assert browser.post("/account/password", {"current": "", "new": NEW}).status_code == 409


def test_an_initial_password_opens_nothing_until_the_person_chose_their_own(ada, root, home):
    before = sign_in("ada", OLD)[0]
    initial = passwords.reset(ada, by=root)
    assert not is_in(before), "a reset ends the sessions"
    assert sign_in("ada", OLD)[1].status_code == 200

    browser, answer = sign_in("ada", initial, to="/queue")
    assert answer["Location"] == "/login/password"
    assert browser.get("/").status_code == 302, "nobody is signed in yet"
    assert browser.get("/api/v1/me").status_code == 401
    assert "Choose a password" in html_of(browser.get("/login/password"))
    assert "This is the password you have" in html_of(browser.post("/login/password", {"new": initial}))
    assert browser.post("/login/password", {"new": NEW})["Location"] == "/queue"

    assert is_in(browser)
    assert is_in(sign_in("ada", NEW)[0])
    assert sign_in("ada", initial)[1].status_code == 200, "the initial password is over"


def test_a_password_that_an_admin_set_in_the_administration_is_changed_at_sign_in(ada, root, reader):
    admin = reader(root)
    form = {"password1": NEW, "password2": NEW, "usable_password": "true"}

    assert admin.post(f"/admin/auth/user/{ada.pk}/password/", form).status_code == 302
    assert admin.post("/admin/auth/user/add/", {"username": "grace", **form}).status_code == 302

    for name in ("ada", "grace"):
        assert sign_in(name, NEW)[1]["Location"] == "/login/password"


def test_a_step_of_the_sign_in_is_nobodys_without_the_password(ada, root, home):
    initial = passwords.reset(ada, by=root)
    stranger = Client()
    assert stranger.get("/login/password")["Location"] == "/login"
    assert stranger.post("/login/password", {"new": NEW})["Location"] == "/login"
    browser = sign_in("ada", initial)[0]

    passwords.reset(ada, by=root)  # while the page was open

    assert browser.post("/login/password", {"new": NEW})["Location"] == "/login"


def test_a_disabled_person_cannot_finish_their_sign_in(ada, root, home):
    browser = sign_in("ada", passwords.reset(ada, by=root))[0]
    User.objects.filter(pk=ada.pk).update(is_active=False)

    assert browser.post("/login/password", {"new": NEW})["Location"] == "/login"


def test_another_host_is_no_place_to_go_after_the_sign_in(ada, home):
    assert sign_in("ada", OLD, to="//elsewhere.example/")[1]["Location"] == "/"


def test_a_password_that_an_identity_provider_keeps_cannot_be_reset(bob, root, home):
    bob.set_unusable_password()
    bob.save()

    with pytest.raises(Conflict, match="The identity provider keeps the password of bob"):
        passwords.reset(bob, by=root)


def test_a_token_for_an_agent_is_made_on_the_account_page(ada, reader):
    form = {
        "name": "claude",
        "scope": "write",
        "agent.device_hours:number": "8",
        "agent.width:number": "2",
        "agent.plan_first:switch": "off",
        "expires_in_s:number": "2592000",
    }
    answer = reader(ada).post("/account/agents", form)

    assert answer["Cache-Control"] == "no-store"
    assert "Your new token" in html_of(answer)
    token = Token.objects.get()
    rules = token.agent
    assert (token.scope, rules.device_hours, rules.width, rules.plan_first) == ("write", 8.0, 2, False)
    assert token.expires_at is not None
    refused = reader(ada).post("/account/agents", {**form, "agent.width:number": "0"})
    assert refused.status_code == 400
    assert "width" in html_of(refused)
    assert Token.objects.count() == 1
