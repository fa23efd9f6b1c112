"""The audit: appended to, read by admins, never changed."""

import csv
import io
import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import transaction
from django.test import RequestFactory
from django.urls import reverse
from django.utils import timezone, translation

from orchestrator.jobs import drains, steering
from orchestrator.models import (
    AdminState,
    AppendOnly,
    AuditEntry,
    BookingKind,
    Device,
    Job,
    Quota,
    Right,
    Role,
)
from orchestrator.people import accounts, audit, quotas, tokens
from orchestrator.scheduler import calendar, owner_order
from orchestrator.sharing import projects
from tests.dashboard.markup import html_of


@pytest.fixture
def entry(db) -> AuditEntry:
    audit.record("root", "pool.changed", "pool default", "open False.", address="10.0.0.1")
    return AuditEntry.objects.get(action="pool.changed")


def test_an_entry_can_be_neither_changed_nor_deleted(entry):
    entry.text = "nothing happened"
    refused = [
        entry.save,
        entry.delete,
        AuditEntry.objects.all().delete,
        lambda: AuditEntry.objects.update(text=""),
        lambda: AuditEntry.objects.filter(pk=entry.pk).update(text=""),
        lambda: AuditEntry.objects.bulk_update([entry], ["text"]),
        lambda: AuditEntry.objects.update_or_create(pk=entry.pk, defaults={"text": ""}),
        lambda: AuditEntry.objects.bulk_create(
            [entry], update_conflicts=True, update_fields=["text"], unique_fields=["id"]
        ),
    ]
    for act in refused:
        with pytest.raises(AppendOnly):
            act()

    assert AuditEntry.objects.get(pk=entry.pk).text == "open False."


def test_the_page_is_for_admins(reader, ada, root, entry):
    assert reader(ada).get(reverse("audit")).status_code == 403
    html = html_of(reader(root).get(reverse("audit")))

    for shown in ("changed a pool", "open False.", "10.0.0.1"):
        assert shown in html
    assert 'href="/audit" aria-current="page"' in html


def test_the_page_filters_and_goes_on(reader, root, entry):
    for number in range(120):
        audit.record("ada", "token.made", f"token {number}", "Made it.")
    browser = reader(root)

    assert "token 0<" not in html_of(browser.get(reverse("audit"), {"actor": "ada"}))
    html = html_of(browser.get(reverse("audit"), {"action": "token"}))
    older = html.split('rel="next"')[0].rsplit('href="', 1)[1].split('"')[0].replace("&amp;", "&")
    assert "token 0<" in html_of(browser.get(reverse("audit") + older))
    assert "Nothing matches" in html_of(browser.get(reverse("audit"), {"actor": "%00 OR 1=1"}))


def test_what_a_hostile_name_would_do_stays_text(reader, root):
    audit.record("<script>alert(1)</script>", "sign_in.failed", "user \u202ex", "Wrong.")

    assert b"<script>alert" not in reader(root).get(reverse("audit")).content


def test_the_admin_pages_write_down_and_change_no_entry(client, root, ada, entry, home, make_pool):
    client.force_login(root)
    assert client.get(f"/admin/orchestrator/auditentry/{entry.pk}/change/").status_code == 200
    assert (
        client.post(f"/admin/orchestrator/auditentry/{entry.pk}/delete/", {"post": "yes"}).status_code == 403
    )
    make_pool()

    fields = {
        "user": ada.pk,
        "pool": "",
        "max_devices": "2",
        "max_queued": "",
        "gpu_hours_a_week": "",
        "weight": "",
    }
    assert client.post("/admin/orchestrator/quota/add/", fields).status_code == 302
    assert Quota.objects.get().max_devices == 2
    contradiction = {**fields, "pool": "default", "max_devices": "3"}
    html = html_of(client.post("/admin/orchestrator/quota/add/", contradiction))
    assert "Give at most that much in the pool" in html
    user = f"/admin/auth/user/{ada.pk}/password/"
    client.post(
        user, {"password1": "a long new one 1", "password2": "a long new one 1", "usable_password": "true"}
    )

    written = AuditEntry.objects.exclude(action__startswith="sign_in").exclude(pk=entry.pk)
    assert set(written.values_list("actor", "action", "subject")) == {
        ("root", "quota.added", "quota ada"),
        ("root", "user.changed", "user ada"),
    }
    assert not written.filter(text__contains="a long new one").exists()


def test_tokens_are_written_down_without_their_text(ada, root):
    token, text = tokens.issue(ada, name="laptop", scope="read", address="10.0.0.9")
    tokens.revoke(token, by=root)

    rows = list(AuditEntry.objects.order_by("pk").values_list("actor", "action", "text"))
    assert rows == [
        ("ada", "token.made", "Created the token laptop (read, never expires)."),
        ("root", "token.revoked", "Revoked the token laptop of ada."),
    ]
    assert text not in str(AuditEntry.objects.values_list())


def test_entries_are_sentences_that_lead_to_jobs_people_and_devices(reader, root, ada, make_job, make_device):
    job, device = make_job(name="tiny-gpt"), make_device(0)
    audit.record("root", "job.cancel", f"job {job.short_id} of ada", "Cancelled it.")
    audit.record("root", "sign_in.done", "user ada", "Signed in.")
    audit.record("root", "device.state", f"device {device.pk}", "Drained.")
    audit.record("root", "job.hold", "job 00000000 of ada", "Held it.")

    html = html_of(reader(root).get(reverse("audit")))

    assert f'href="/jobs/{job.pk}"' in html
    assert "tiny-gpt of ada" in html
    assert 'href="/people?q=ada"' in html
    assert f'href="/devices/{device.pk}"' in html
    for words in (
        "cancelled a job",
        "signed in",
        "drained, enabled or disabled a device",
        "job 00000000 of ada",
    ):
        assert words in html


def test_days_filter_the_page_the_files_and_rest(reader, root, entry):
    browser, address = reader(root), reverse("audit")
    today = entry.at.date()
    for given, there in (
        ({"from": today, "to": today}, True),
        ({"from": today + timedelta(days=1)}, False),
        ({"to": today - timedelta(days=1)}, False),
        ({"from": "yesterday"}, True),
    ):
        query = {**given, "action": "pool"}
        assert ("open False." in html_of(browser.get(address, query))) is there, given
        rows = b"".join(browser.get("/audit.jsonl", query).streaming_content)
        assert (b"open False." in rows) is there, given
    later = (entry.at + timedelta(seconds=1)).isoformat()
    found = browser.get("/api/v1/audit", {"from": later, "action": "pool"}).json()["results"]
    assert found == []


def test_the_audit_is_exported_as_csv_and_lines_of_json_for_admins(reader, root, ada, entry):
    audit.record("=cmd()", "sign_in.failed", "user x", "Wrong, and\nagain.")
    client = reader(root)
    text = b"".join(client.get("/audit.csv", {"address": "ignored"}).streaming_content).decode()
    rows = list(csv.DictReader(io.StringIO(text)))

    assert [row["actor"] for row in rows if row["action"] != "sign_in.done"] == ["'=cmd()", "root"]
    assert "Wrong, and\nagain." in {row["text"] for row in rows}
    lines = b"".join(client.get("/audit.jsonl").streaming_content).splitlines()
    assert json.loads(lines[-1])["subject"] == "pool default"
    assert client.get("/audit.xml").status_code == 404
    for kind in ("csv", "jsonl"):
        assert reader(ada).get(f"/audit.{kind}").status_code == 403


@pytest.fixture
def acts(home, root, ada, make_job, make_device) -> list[Callable[[], object]]:
    """Acts of an admin that the audit tells of, one of each kind of sentence."""
    device = make_device(0)
    first, other = make_job(name="first"), make_job(name="other")
    start = timezone.now() + timedelta(hours=1)
    request = RequestFactory().post("/")
    request.user = root

    def book() -> None:
        booking = calendar.make(
            root,
            devices=1,
            people=["ada"],
            name="course",
            kind=BookingKind.RESERVATION,
            pool=device.pool,
            start=start,
            until=start + timedelta(hours=1),
        )
        calendar.change(booking, by=root, name="lesson")
        calendar.remove(booking, by=root)

    return [
        lambda: owner_order.move(root, Job.objects.get(pk=other.pk), first, behind=False),
        lambda: steering.steer(root, Job.objects.get(pk=first.pk), "hold"),
        lambda: drains.set_state(
            Device.objects.get(pk=device.pk), AdminState.DRAINING, by=root, reason="new fan", until=start
        ),
        book,
        lambda: quotas.set_limits(ada, {"max_devices": 2}, by=root),
        lambda: accounts.set_role(ada, Role.OPERATOR, by=root),
        lambda: accounts.give_right(ada, device.pool, Right.SUBMIT, by=root),
        lambda: accounts.set_active(ada, active=False, by=root),
        lambda: projects.create(root, "paper"),
        lambda: admin.site._registry[User].log_addition(request, ada, []),
    ]


def test_the_audit_is_in_english_whoever_acts(acts):
    def told(language: str) -> list[str]:
        with translation.override(language), transaction.atomic():
            start = AuditEntry.objects.count()
            for act in acts:
                act()
            entries = AuditEntry.objects.order_by("pk")[start:]
            lines = [f"{entry.action} {entry.subject} {entry.text}" for entry in entries]
            transaction.set_rollback(True)
            return lines

    assert told("de") == told("en")
