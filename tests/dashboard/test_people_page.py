"""The page of people, and the one behind an invitation's link."""

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from orchestrator.models import AuditEntry, Invitation, Person, PoolRight, Quota, Role
from orchestrator.people import accounts, invitations, rights, single_sign_on
from tests.dashboard.markup import html_of

pytestmark = pytest.mark.django_db

PASSWORD = "difference engine no. 2"  # noqa: S105  # a test's


def link_in(page: str) -> str:
    found = re.search(r"http://testserver(/invitation/[\w-]+)", page)
    assert found is not None, page
    return found[1]


def join(link: str, name: str = "grace", password: str = PASSWORD, **more: str) -> tuple[Client, str, int]:
    """A stranger's browser after it filled the invitation's form, and the answer."""
    browser = Client()
    answer = browser.post(link, {"username": name, "password": password, **more})
    return browser, html_of(answer), answer.status_code


def test_a_new_person_with_role_and_quota_takes_one_form_and_a_link(reader, root, make_pool):
    make_pool("closed", open=False)
    admin = reader(root)

    form = {
        "note": "Grace",
        "role": "submitter",
        "quota.max_devices:number": "2",
        "quota.gpu_hours_a_week:number": "",
        "pool": "closed",
        "right": "submit",
        "expires_in_s:number": "604800",
    }
    shown = admin.post("/people/invite", form)

    assert shown["Cache-Control"] == "no-store"
    link = link_in(html_of(shown))
    assert "Welcome, <bdi>Grace</bdi>" in html_of(Client().get(link))
    browser, _, status = join(link, email="grace@lab.example")
    assert status == 302
    assert browser.get("/").status_code == 200, "the new person is signed in"
    grace = User.objects.get(username="grace")
    assert (rights.role_of(grace), grace.email) == (Role.SUBMITTER, "grace@lab.example")
    assert Quota.objects.get().max_devices == 2
    assert PoolRight.objects.get().pool_id == "closed"
    assert Invitation.objects.get().used_by == grace
    assert set(AuditEntry.objects.values_list("action", flat=True)) >= {"invitation.made", "invitation.used"}
    assert Client().get(link).status_code == 404, "a link makes one account"


@pytest.mark.parametrize(
    ("name", "password", "said"),
    [
        ("ada", PASSWORD, "is taken"),
        ("ADA", PASSWORD, "is taken"),
        ("two words", PASSWORD, "valid username"),
        ("grace", "password", "too common"),
        ("grace", "grace1", "too short"),
        ("", PASSWORD, "cannot be blank"),
    ],
)
def test_a_name_or_password_that_cannot_be_is_told_and_the_link_goes_on(
    name, password, said, ada, root, home
):
    _, text = invitations.invite(root)

    _, page, status = join(f"/invitation/{text}", name, password)

    assert status in {400, 409}
    assert said in page
    assert join(f"/invitation/{text}")[2] == 302


def test_an_invitation_ends_with_its_time_and_with_its_inviters_rights(root, ada, home):
    Person.objects.create(user=ada, role=Role.OPERATOR)
    by_ada = f"/invitation/{invitations.invite(ada)[1]}"
    by_root = f"/invitation/{invitations.invite(root)[1]}"
    Invitation.objects.filter(invited_by=root).update(expires_at=timezone.now() - timedelta(seconds=1))
    Person.objects.update(role=Role.SUBMITTER)

    for link in (by_ada, by_root, "/invitation/guessed"):
        page = Client().get(link)
        assert page.status_code == 404
        assert "This invitation is over" in html_of(page)
        assert join(link)[2] == 404
    assert not User.objects.filter(username="grace").exists()


def test_whoever_is_signed_in_keeps_their_account(reader, root, ada):
    _, text = invitations.invite(root, role=Role.ADMIN)

    assert reader(ada).post(f"/invitation/{text}", {"username": "x", "password": PASSWORD}).url == "/"
    assert rights.role_of(ada) == Role.SUBMITTER


def test_role_and_quota_are_changed_in_the_row(reader, root, ada):
    admin = reader(root)
    fields = {
        "do": "PATCH /api/v1/people/ada",
        "role": "operator",
        "quota.max_devices:number": "3",
        "quota.gpu_hours_a_week:number": "",
    }

    answer = admin.post("/change", fields, headers={"Referer": "http://testserver/people?q=a&page=1"})

    assert answer.url == "/people?q=a&page=1"
    assert rights.role_of(User.objects.get(pk=ada.pk)) == Role.OPERATOR
    assert Quota.objects.get(user=ada).max_devices == 3
    refused = admin.post(
        "/change", {**fields, "quota.max_devices:number": "many"}, headers={"X-Requested-With": "fetch"}
    )
    assert refused.status_code == 400
    assert "max_devices" in refused.json()["detail"]


def test_two_hundred_people_are_pages_that_can_be_searched(reader, root, django_assert_max_num_queries):
    User.objects.bulk_create(User(username=f"student{number:03}") for number in range(200))
    admin = reader(root)

    with django_assert_max_num_queries(25):
        first = html_of(admin.get("/people"))

    assert "201 accounts" in first
    assert first.count("<tr>") - first.count("<thead>") <= 51
    assert "student199" not in first
    assert "student199" in html_of(admin.get("/people?page=5"))
    assert "1 account with" in html_of(admin.get("/people?q=student199"))
    assert "Nobody is called that" in html_of(admin.get("/people?q=nobody"))


def test_operators_see_who_waits_and_others_see_no_such_page(reader, bob, ada):
    accounts.let_wait(bob)
    assert reader(ada).get("/people").status_code == 403
    assert reader(ada).post("/people/invite", {"role": "viewer"}).status_code == 403
    assert 'href="/people"' not in html_of(reader(ada).get("/"))
    assert "Your account is new" in html_of(reader(bob).get("/"))
    Person.objects.create(user=ada, role=Role.OPERATOR)

    page = html_of(reader(ada).get("/people"))

    assert "Waiting for approval" in page
    assert "Approve<span" in page
    assert "Disable" not in page, "only admins change accounts"


def test_an_account_made_on_the_page_shows_its_password_once(reader, root):
    admin = reader(root)

    shown = admin.post("/people/new", {"username": "ana", "role": "submitter", "service:switch": "off"})

    assert shown["Cache-Control"] == "no-store"
    found = re.search(r"ana,([a-z2-9]{5}(?:-[a-z2-9]{5}){3})", html_of(shown))
    assert found is not None
    assert Client().post("/login", {"username": "ana", "password": found[1]})["Location"] == "/login/password"
    assert found[1] not in html_of(admin.get("/people"))
    refused = admin.post("/people/new", {"username": "ANA", "role": "submitter"})
    assert refused.status_code == 409
    assert "The name ANA is taken" in html_of(refused)
    assert 'value="ANA"' in html_of(refused)


def test_a_list_is_pasted_or_uploaded_and_comes_back_with_its_error(reader, root):
    admin = reader(root)
    file = SimpleUploadedFile("people.csv", "\ufeffusername,name\ngrace,Grace Höpper\n".encode())

    assert "1 new account" in html_of(admin.post("/people/import", {"csv": "username\nana\n"}))
    assert "grace," in html_of(admin.post("/people/import", {"csv": "", "file": file}))
    refused = admin.post("/people/import", {"csv": "username,role\nbo,king\n"})

    assert refused.status_code == 400
    assert "Line 2: &#x27;king&#x27; is no role" in html_of(refused)
    assert "bo,king" in html_of(refused)
    assert User.objects.get(username="grace").first_name == "Grace Höpper"


def test_a_persons_page_gives_a_password_and_a_programs_tokens(reader, root, ada):
    ada.set_password(PASSWORD)
    ada.save()
    admin = reader(root)
    admin.post("/people/new", {"username": "ci", "role": "submitter", "service:switch": "on"})

    reset = admin.post("/people/of/ada/password")
    token = admin.post("/people/of/ci/tokens", {"name": "nightly", "expires_in_s:number": "2592000"})

    for shown, identity in ((reset, "new-password"), (token, "new-token")):
        assert shown["Cache-Control"] == "no-store"
        assert f'id="{identity}"' in html_of(shown)
    page = html_of(admin.get("/people/of/ci"))
    assert "nightly" in page
    assert "Give a new password" not in page
    assert "Create a token" not in html_of(admin.get("/people/of/ada"))
    refused = admin.post("/people/of/ci/password")
    assert refused.status_code == 409
    assert "signs in by tokens" in html_of(refused)
    assert admin.get("/people/of/nobody").status_code == 404


def test_only_who_runs_the_server_sees_a_persons_page_and_makes_accounts(reader, ada, bob):
    for address in ("/people/of/bob", "/people/of/nobody"):
        assert reader(ada).get(address).status_code == 403
    for address in ("/people/new", "/people/import", "/people/of/bob/password", "/people/of/bob/tokens"):
        assert reader(ada).post(address, {"username": "eve", "csv": "username\neve\n"}).status_code == 403
    Person.objects.create(user=ada, role=Role.OPERATOR)
    assert "Give a new password" not in html_of(reader(ada).get("/people/of/bob"))
    assert reader(ada).post("/people/of/bob/password").status_code == 403
    assert not User.objects.filter(username="eve").exists()


def test_the_page_says_that_groups_replace_roles_where_groups_have_roles(reader, root, bob, settings):
    accounts.set_role(bob, Role.SUBMITTER, by=root, by_group=True)
    assert "replaces the role" not in html_of(reader(root).get("/people"))
    settings.LDAP = single_sign_on.read_ldap(
        {
            "BERTH_LDAP_URL": "ldaps://directory.example",
            "BERTH_LDAP_SEARCH_BASE": "dc=lab",
            "BERTH_LDAP_ROLES": "submitter=cn=gpu,dc=lab",
        }
    )

    page = html_of(reader(root).get("/people"))

    assert "a person's group replaces the role" in page
    assert page.count("by group") == 1
