"""Django's admin pages: what operators may change, and what nobody may."""

import html

import pytest
from django.test import Client
from django.urls import reverse

from orchestrator.models import DatasetRoot, Device, Health, Job, JobState, Token
from orchestrator.people import tokens


@pytest.fixture
def admin_client(home, root) -> Client:
    client = Client()
    client.force_login(root)
    return client


def act(client: Client, model: str, action: str, *keys: object):
    address = reverse(f"admin:orchestrator_{model}_changelist")
    return client.post(
        address, {"action": action, "_selected_action": [str(key) for key in keys]}, follow=True
    )


@pytest.mark.parametrize(
    "model",
    [
        *("pool", "device", "dataset", "datasetroot", "job", "attempt", "lease", "jobevent", "token"),
        *("quota", "person", "poolright", "booking", "auditentry"),
    ],
)
def test_every_list_opens(model, admin_client, make_attempt, ada):
    make_attempt()
    tokens.issue(ada, name="laptop")

    answer = admin_client.get(reverse(f"admin:orchestrator_{model}_changelist"))

    assert answer.status_code == 200
    assert b"<script>" not in answer.content  # nothing inline: the policy would stop it


def test_a_job_can_be_looked_at_and_not_changed(admin_client, make_attempt):
    job = make_attempt(state=JobState.STOPPING).job
    address = reverse("admin:orchestrator_job_change", args=[job.pk])
    reason = job.events.order_by("number").last().reason

    assert reason
    assert reason in html.unescape(admin_client.get(address).content.decode())
    assert admin_client.post(address, {"state": "succeeded"}).status_code == 403
    assert admin_client.get(reverse("admin:orchestrator_job_add")).status_code == 403
    assert admin_client.post(reverse("admin:orchestrator_job_delete", args=[job.pk])).status_code == 403
    assert Job.objects.get().state == job.state


def test_devices_are_drained_and_enabled_in_bulk(admin_client, make_device):
    make_device(0)
    make_device(1)

    act(admin_client, "device", "drain", "sim-0", "sim-1")
    assert set(Device.objects.values_list("admin_state", flat=True)) == {"draining"}
    act(admin_client, "device", "enable", "sim-0")
    assert Device.objects.get(pk="sim-0").usable


def test_saving_a_device_keeps_what_the_agent_wrote_meanwhile(admin_client, make_device):
    device = make_device(0)
    address = reverse("admin:orchestrator_device_change", args=[device.pk])
    admin_client.get(address)
    Device.objects.update(health=Health.FAULTY)

    admin_client.post(address, {"pool": "default", "admin_state": "disabled"})

    device.refresh_from_db()
    assert (device.admin_state, device.health) == ("disabled", "faulty")


def test_a_fenced_device_cannot_be_declared_sound(admin_client, make_device):
    make_device(0, health=Health.FENCED)
    make_device(1, health=Health.FAULTY)

    act(admin_client, "device", "declare_sound", "sim-0", "sim-1")

    assert Device.objects.get(pk="sim-0").health == Health.FENCED
    assert Device.objects.get(pk="sim-1").health == Health.OK


def test_a_token_is_revoked_and_its_hash_never_shown(admin_client, ada):
    token, text = tokens.issue(ada, name="laptop")
    address = reverse("admin:orchestrator_token_change", args=[token.pk])

    page = admin_client.get(address).content.decode()
    act(admin_client, "token", "revoke", token.pk)

    assert token.digest not in page
    assert tokens.authenticate(text) is None
    assert Token.objects.get().revoked_at is not None


def test_operators_add_dataset_roots_but_not_over_berths_own_state(admin_client, tmp_path, home):
    (tmp_path / "data").mkdir()
    address = reverse("admin:orchestrator_datasetroot_add")

    for path in ("data", "/nowhere/at/all", "/", "/proc", str(tmp_path), str(home.uploads)):
        assert admin_client.post(address, {"name": "data", "path": path}).status_code == 200, path
    assert not DatasetRoot.objects.exists()
    admin_client.post(address, {"name": "data", "path": str(tmp_path / "data")})
    assert DatasetRoot.objects.get().path == str(tmp_path / "data")


def test_members_stay_out(home, ada):
    client = Client()
    client.force_login(ada)

    assert client.get(reverse("admin:index")).status_code == 302
