"""The page of federated trainings: sites, rounds, what was left out, and stopping."""

import json

import pytest
from django.utils import timezone

from orchestrator.federations import asking, controller, creation
from orchestrator.models import Federation, FederationMember, Job, JobState, Pool
from tests.api.test_federated import ASKED, REPORT


@pytest.fixture
def reader(client, ada, home):
    client.force_login(ada)
    return client


@pytest.fixture
def federation(ada, make_device, home):
    Pool.objects.get_or_create(name="cpu")
    for index in range(4):
        make_device(index, kind="cpu", pool_id="cpu")
    return creation.create(ada, asking.parse({**ASKED, "name": "clinics", "result": "fed"}))


def leave_report(home, federation: Federation) -> Job:
    server = FederationMember.objects.get(federation=federation, number=None).job
    output = home.job(server.pk).output
    output.mkdir(parents=True, exist_ok=True)
    (output / "federated.json").write_text(json.dumps(REPORT))
    return server


def test_an_empty_page_says_how_one_is_begun(reader):
    assert "berth federated run train.py" in reader.get("/federated").content.decode()


def test_rounds_sites_and_privacy_are_shown_while_it_runs(reader, federation, home):
    leave_report(home, federation)

    page = reader.get("/federated").content.decode()

    assert "clinics" in page
    assert "2 of 2 rounds" in page
    assert "left out from round 2 on: its update has NaN or infinite values" in page
    assert "epsilon 2.5" in page
    assert page.count("takes part") == 2
    assert f"/federated/{federation.pk}/stop" in page


def test_it_is_stopped_from_the_page(reader, federation):
    form = {"do": f"POST /api/v1/federated/{federation.pk}/stop", "done": "Stopped it."}

    answer = reader.post("/change", form, follow=True)

    assert answer.status_code == 200
    page = reader.get("/federated").content.decode()
    assert "Stopped by ada, with all its jobs." in page
    assert f"/federated/{federation.pk}/stop" not in page


def test_a_server_that_failed_is_told_with_its_reason(reader, federation, home):
    server = leave_report(home, federation)
    Job.objects.filter(pk=server.pk).update(state=JobState.FAILED)
    controller.advance(Federation.objects.get(pk=federation.pk), timezone.now())

    page = reader.get("/federated").content.decode()

    assert "The job of its server has failed." in page
    assert page.count("took part") == 2


def test_those_of_others_are_not_shown(client, federation, bob):
    client.force_login(bob)

    assert "clinics" not in client.get("/federated").content.decode()


@pytest.fixture
def shared_out(ada, make_device, home):
    """A federation with a site at another Berth."""
    Pool.objects.get_or_create(name="cpu")
    for index in range(4):
        make_device(index, kind="cpu", pool_id="cpu")
    return creation.create(ada, asking.parse({**ASKED, "sites": 2, "remote_sites": 1}))


def test_a_site_elsewhere_is_invited_its_link_is_shown_once_and_it_is_revoked(reader, shared_out):
    assert "waits for an invitation" in reader.get("/federated").content.decode()

    answer = reader.post(
        f"/federated/{shared_out.pk}/invite", {"name": "clinic-b", "expires_in_s:number": "86400"}
    )

    page = answer.content.decode()
    assert answer.status_code == 200
    assert answer["Cache-Control"] == "no-store"
    assert "/federated#bsite_" in page
    assert "data-copy" in page
    assert "data-fresh" not in page  # a refresh would take the link away
    again = reader.get("/federated").content.decode()
    assert "bsite_" not in again
    assert "clinic-b" in again
    assert "not there yet" in again
    form = {"do": f"DELETE /api/v1/federated/{shared_out.pk}/invitations/clinic-b", "done": "Revoked it."}
    assert form["do"] in again
    came_from = f"http://testserver/federated/{shared_out.pk}/invite"  # where the link was shown
    answer = reader.post("/change", form, headers={"Referer": came_from}, follow=True)
    assert answer.status_code == 200
    revoked = answer.content.decode()
    assert "never joined" in revoked
    assert form["do"] not in revoked


def test_an_invitation_that_cannot_be_says_why(reader, shared_out):
    answer = reader.post(f"/federated/{shared_out.pk}/invite", {"name": "no spaces"})

    assert answer.status_code == 400
    assert "use 1 to 63 letters" in answer.content.decode()


def test_others_get_no_form_to_invite(client, shared_out, bob):
    client.force_login(bob)

    answer = client.post(f"/federated/{shared_out.pk}/invite", {"name": "mine"})

    assert answer.status_code == 404
    assert "bsite_" not in answer.content.decode()


@pytest.fixture
def on_page_two(shared_out):
    """The federation with a site at another Berth, behind a page of newer ones."""
    for number in range(10):
        Federation.objects.create(
            name=f"newer-{number}",
            owner=shared_out.owner,
            pool=shared_out.pool,
            rounds=1,
            sites=2,
            options=shared_out.options,
            created_at=timezone.now(),
        )
    return shared_out


def test_a_link_is_shown_for_a_federation_on_a_later_page(reader, on_page_two):
    asked = {"name": "clinic-b", "expires_in_s:number": "86400"}

    page = reader.post(f"/federated/{on_page_two.pk}/invite", asked).content.decode()

    assert "/federated#bsite_" in page
    assert 'href="/federated?page=1"' in page  # of the list, which this address is not


def test_a_refused_invitation_keeps_what_was_typed(reader, on_page_two):
    asked = {"name": "no spaces", "expires_in_s:number": "2592000"}

    page = reader.post(f"/federated/{on_page_two.pk}/invite", asked).content.decode()

    assert 'value="no spaces"' in page
    assert '<option value="2592000" selected>' in page
    assert page.count(" selected>") == 1


def test_an_invitation_to_a_federation_that_has_ended_says_so(reader, shared_out):
    reader.post("/change", {"do": f"POST /api/v1/federated/{shared_out.pk}/stop"})

    answer = reader.post(f"/federated/{shared_out.pk}/invite", {"name": "clinic-b"})

    assert answer.status_code == 409
    assert 'role="alert"' in answer.content.decode()
