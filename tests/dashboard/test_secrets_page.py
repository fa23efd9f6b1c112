"""Secrets on the account page."""

import pytest
from django.test import Client
from django.urls import reverse

from orchestrator.models import JobSecret
from orchestrator.people import secrets
from tests.dashboard.markup import html_of


@pytest.fixture
def page(ada, home) -> Client:
    client = Client()
    client.force_login(ada)
    return client


def test_a_stored_secret_is_listed_by_name_alone(page, ada):
    answer = page.post(reverse("secret-keep"), {"name": "HF_TOKEN", "value": "quiet-value"}, follow=True)

    text = html_of(answer)
    assert "HF_TOKEN" in text
    assert "quiet-value" not in text
    assert secrets.reveal(ada, ["HF_TOKEN"]) == {"HF_TOKEN": "quiet-value"}


def test_a_refused_name_is_explained_beside_its_field_and_the_value_is_not_sent_back(page):
    answer = page.post(reverse("secret-keep"), {"name": "LD_PRELOAD", "value": "quiet-value"})

    text = html_of(answer)
    assert answer.status_code == 400
    assert "steers its launch" in text
    assert "quiet-value" not in text


def test_one_is_forgotten(page, ada):
    secrets.keep(ada, "HF_TOKEN", "quiet-value")

    page.post(reverse("secret-forget", args=["HF_TOKEN"]))

    assert not JobSecret.objects.exists()
