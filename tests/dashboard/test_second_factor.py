"""A second factor at sign-in: codes of an app, recovery codes, passkeys, the policy, and who may change what."""

import re
import time
from dataclasses import replace
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from django.contrib.auth.models import User
from django.test import Client

from orchestrator.models import AuditEntry, Person, Role, SignInFailure
from orchestrator.people import second_factor, sign_in_limits
from tests.dashboard.markup import html_of

pytestmark = pytest.mark.django_db

PASSWORD = "difference engine no. 1"  # noqa: S105  # a test's


@pytest.fixture
def ada(ada: User) -> User:
    ada.set_password(PASSWORD)
    ada.save()
    return ada


def code_of(secret: str, steps: int = 0) -> str:
    """What an app shows now, or some half-minutes later."""
    return str(format_hotp_value(hotp_value(secret, int(time.time()) // 30 + steps)))


def sign_in(name: str = "ada") -> tuple[Client, Any]:
    browser = Client()
    return browser, browser.post("/login", {"username": name, "password": PASSWORD, "next": "/queue"})


def secret_in(browser: Client, address: str = "/account/second-factor") -> str:
    found = re.search(r'id="app-secret">([A-Z2-7]+)<', html_of(browser.get(address)))
    assert found is not None
    return found[1]


@pytest.fixture
def with_app(ada, reader) -> tuple[str, list[str]]:
    """Ada has an app: its secret, and her recovery codes."""
    browser = reader(ada)
    secret = secret_in(browser)
    shown = browser.post("/account/second-factor/app", {"code": code_of(secret, -1), "password": PASSWORD})
    codes = re.findall(r"\b\d{8}\b", html_of(shown))
    assert len(codes) == 10
    return secret, codes


def test_an_app_is_asked_for_after_the_password(with_app, ada):
    secret, _ = with_app
    browser, answer = sign_in()

    assert answer["Location"] == "/login/factor"
    assert browser.get("/api/v1/me").status_code == 401, "nobody is signed in yet"
    assert "Code of your app" in html_of(browser.get("/login/factor"))
    wrong = browser.post("/login/factor", {"code": "000000"})
    assert wrong.status_code == 400
    assert "This code is wrong" in html_of(wrong)
    assert browser.post("/login/factor", {"code": code_of(secret)})["Location"] == "/queue"
    assert browser.get("/account").status_code == 200
    assert secret not in str(Authenticator.objects.values_list()), "the secret is kept encrypted"
    actions = set(AuditEntry.objects.values_list("action", flat=True))
    assert {"second_factor.added", "second_factor.failed", "sign_in.done"} <= actions


def test_a_code_signs_in_once_and_so_does_a_recovery_code(with_app, ada):
    secret, codes = with_app
    seen = code_of(secret)

    for code in (seen, codes[3]):
        assert sign_in()[0].post("/login/factor", {"code": code})["Location"] == "/queue"
        assert sign_in()[0].post("/login/factor", {"code": code}).status_code == 400
    assert len(second_factor.recovery_codes(ada)) == 9


def test_guesses_of_a_code_are_slowed_down(with_app, ada):
    secret, _ = with_app
    browser, _ = sign_in()
    for _ in range(sign_in_limits.MOST_OF_ACCOUNT):
        browser.post("/login/factor", {"code": "000000"})

    answer = browser.post("/login/factor", {"code": code_of(secret)})

    assert answer.status_code == 429
    assert "Too many wrong codes" in html_of(answer)
    SignInFailure.objects.all().delete()
    assert browser.post("/login/factor", {"code": code_of(secret)})["Location"] == "/queue"


def test_a_password_is_needed_to_change_the_second_factor(with_app, ada, reader):
    browser = reader(ada)
    app = second_factor.app_of(ada)
    assert app is not None

    refused = browser.post(f"/account/second-factor/{app.pk}/remove", {"password": "wrong"})
    assert "This is not your password" in html_of(refused)
    assert "This is not your password" in html_of(browser.post("/account/second-factor/codes", {}))
    assert second_factor.has(ada)
    renewed = browser.post("/account/second-factor/codes", {"password": PASSWORD})
    assert not set(with_app[1]) & set(re.findall(r"\b\d{8}\b", html_of(renewed)))
    assert browser.post(f"/account/second-factor/{app.pk}/remove", {"password": PASSWORD}).status_code == 302
    assert not Authenticator.objects.exists(), "recovery codes go with the last factor"
    assert sign_in()[1]["Location"] == "/queue"


def test_a_wrong_code_adds_no_app_and_nobody_elses_is_removed(ada, bob, reader, with_app):
    browser = reader(bob)
    bob.set_password(PASSWORD)
    bob.save()
    browser = reader(bob)
    secret_in(browser)
    app = second_factor.app_of(ada)
    assert app is not None

    added = browser.post("/account/second-factor/app", {"code": "12", "password": PASSWORD})
    assert added.status_code == 400
    assert browser.post(f"/account/second-factor/{app.pk}/remove", {"password": PASSWORD}).status_code == 404
    broken = {"name": "phone", "passkey": "{}", "password": PASSWORD}
    assert browser.post("/account/second-factor/passkey", broken).status_code == 400
    assert not second_factor.has(bob)
    assert second_factor.has(ada)


def test_an_admin_removes_the_factor_of_somebody_who_lost_it(with_app, ada, bob, root, reader):
    Person.objects.create(user=bob, role=Role.OPERATOR)
    signed_in = reader(ada)
    form = {"do": "DELETE /api/v1/people/ada/second-factor"}
    assert "Remove the second factor" not in html_of(reader(bob).get("/people/of/ada"))
    assert "Remove the second factor" in html_of(reader(root).get("/people/of/ada"))
    fetched = {"X-Requested-With": "fetch"}

    assert reader(bob).post("/change", form, headers=fetched).status_code == 403
    assert reader(root).post("/change", form, headers=fetched).status_code == 200

    assert signed_in.get("/account").status_code == 302, "sessions end"
    assert sign_in()[1]["Location"] == "/queue"
    assert AuditEntry.objects.get(action="second_factor.reset").actor == "root"


def test_staff_add_a_factor_at_sign_in_where_the_server_asks_for_one(ada, bob, settings, home):
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, second_factor="staff")
    assert sign_in()[1]["Location"] == "/queue", "a submitter is not asked"
    Person.objects.update_or_create(user=ada, defaults={"role": Role.OPERATOR})

    browser, answer = sign_in()

    assert answer["Location"] == "/login/enrol"
    secret = secret_in(browser, "/login/enrol")
    assert "This code is wrong" in html_of(browser.post("/login/enrol", {"code": "000000"}))
    shown = html_of(browser.post("/login/enrol", {"code": code_of(secret)}))
    assert len(re.findall(r"\b\d{8}\b", shown)) == 10
    assert browser.get("/account").status_code == 302, "the codes were shown, nobody is signed in yet"
    assert browser.post("/login/finish")["Location"] == "/queue"
    app = second_factor.app_of(ada)
    assert app is not None
    refused = browser.post(f"/account/second-factor/{app.pk}/remove", {"password": PASSWORD})
    assert "Add another before you remove this one" in html_of(refused)


def test_a_session_without_a_factor_ends_when_the_server_begins_to_ask(ada, settings, home):
    browser = sign_in()[0]
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, second_factor="everybody")
    session = browser.session
    session["seen_at"] = 0.0  # the last look was long ago
    session.save()

    assert browser.get("/account").status_code == 302
    assert browser.get("/account")["Location"].startswith("/login")


def test_the_steps_of_the_sign_in_are_nobodys_without_the_password(with_app, home):
    for address in ("/login/factor", "/login/enrol", "/login/finish"):
        assert Client().post(address, {"code": with_app[1][0]})["Location"] == "/login"


def test_a_second_factor_cannot_be_skipped_by_another_step(with_app, ada):
    browser, _ = sign_in()

    assert browser.post("/login/finish")["Location"] == "/login/factor"
    assert browser.post("/login/enrol", {"code": "000000"})["Location"] == "/login"
    assert browser.post("/login/password", {"new": "x" * 12})["Location"] == "/login"
    assert browser.get("/account").status_code == 302


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning")  # WhiteNoise's files
def test_a_passkey_is_added_and_signs_in(ada, open_page, server, browser):
    page = open_page(ada, "/account")
    address = server.url.replace("127.0.0.1", "localhost")  # a passkey is of a name, never of an address
    devices = page.context.new_cdp_session(page)
    devices.send("WebAuthn.enable")
    key = {"protocol": "ctap2", "transport": "internal", "hasResidentKey": True, "hasUserVerification": True}
    options = {**key, "isUserVerified": True, "automaticPresenceSimulation": True}
    devices.send("WebAuthn.addVirtualAuthenticator", {"options": options})
    server.url = address

    def give_password() -> None:
        page.goto(f"{address}/login?next=/account/second-factor")
        page.get_by_label("User name").fill("ada")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()

    give_password()
    page.get_by_label("Name of a new passkey").fill("laptop")
    page.locator("#key-password").fill(PASSWORD)
    page.get_by_role("button", name="Add a passkey").click()
    page.get_by_text("Your recovery codes.").wait_for()
    page.context.clear_cookies()
    give_password()
    page.get_by_role("button", name="Use a passkey").click()

    page.wait_for_url("**/account/second-factor")
    assert page.get_by_text("laptop").first.is_visible()
    assert "last used" in page.locator("section", has_text="Passkeys").inner_text()
