"""A page that answers a form at an address of its own: what comes back to that address gets the page."""

import pytest
from django.urls import reverse

PAGES = [
    ("invite", (), "people"),
    ("person-new", (), "people"),
    ("people-import", (), "people"),
    ("person-password", ("ada",), "person"),
    ("person-token", ("ada",), "person"),
    ("token-create", (), "account"),
    ("agent-token-create", (), "account"),
    ("password-change", (), "account"),
    ("secret-keep", (), "account"),
    ("notice-add", (), "account"),
    ("factor-app", (), "second-factor"),
    ("factor-passkey", (), "second-factor"),
    ("factor-codes", (), "second-factor"),
    ("factor-remove", (1,), "second-factor"),
    ("service-key", ("digits",), "service"),
    ("federated-invite", ("0193a0b0-0000-7000-8000-000000000000",), "federated"),
    ("model-recipe", ("ada/vit@1",), "model"),
    ("model-service", ("ada/vit@1",), "model"),
]


@pytest.mark.parametrize(("form", "arguments", "page"), PAGES, ids=[form for form, _, _ in PAGES])
def test_an_address_of_a_form_leads_back_to_its_page(reader, ada, form, arguments, page):
    answer = reader(ada).get(reverse(form, args=arguments))

    kept = arguments if page in {"person", "service", "model"} else ()
    assert (answer.status_code, answer["Location"]) == (302, reverse(page, args=kept))


def test_a_change_beside_a_link_that_is_shown_once_comes_back_to_the_page(reader, root):
    person = reader(root)
    shown = person.post(reverse("invite"), {"role": "submitter"})
    back = person.post(
        reverse("change"),
        {"do": "DELETE /api/v1/invitations/0"},
        headers={"Referer": f"http://testserver{reverse('invite')}"},
        follow=True,
    )

    assert shown.status_code == 200
    assert (back.status_code, back.redirect_chain[-1][0]) == (200, reverse("people"))
