"""Sites at other Berths by REST: invitations, the door for their messages, and who may do what."""

import json
import secrets
from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.federations import controller, door
from orchestrator.jobs import exchanges
from orchestrator.models import (
    AuditEntry,
    Federation,
    FederationInvitation,
    Job,
    JobSecret,
    JobState,
    Pool,
)
from orchestrator.models.pools import Network
from tests.api.test_errors import HOSTILE_VALUES
from tests.api.test_federated import ASKED, advance, begin, end_jobs, leave, server_of

OTHER = {**ASKED, "remote_sites": 2, "sites": 2}


@pytest.fixture
def client(client_of, ada, make_device, home):
    Pool.objects.get_or_create(name="cpu")
    for index in range(4):
        make_device(index, kind="cpu", pool_id="cpu")
    return client_of(ada)


@pytest.fixture
def federation(client):
    return Federation.objects.get(pk=begin(client, sites=2, remote_sites=2).json()["id"])


def invite(client, federation, name="clinic-b", **fields):
    return client.send("POST", f"/federated/{federation.pk}/invitations", {"name": name, **fields})


class Site:
    """A site at another Berth, as its program talks to the door."""

    def __init__(self, anonymous, link):
        self._client = anonymous
        self.secret = link.partition("#")[2]

    def send(self, method, path="", data=None, *, secret=None):
        headers = {"Authorization": f"Token {secret or self.secret}"}
        return self._client.send(method, f"/rounds{path}", data, **headers)

    def put(self, data, message=None, *, offset=0, size=None):
        message = message or secrets.token_hex(16)
        whole = len(data) if size is None else size
        return self.send("PUT", f"/messages/{message}?offset={offset}&size={whole}", data)


@pytest.fixture
def site(client, federation, anonymous):
    return Site(anonymous, invite(client, federation).json()["link"])


def folder_of(federation, number, way):
    return exchanges.root_of(federation.pk) / "sites" / str(number) / way


def test_a_federation_keeps_numbers_for_sites_at_other_berths(client):
    made = begin(client, sites=2, remote_sites=2).json()

    assert [(each["number"], each["job"] is None) for each in made["sites"]] == [
        (0, False),
        (1, False),
        (2, True),
        (3, True),
    ]
    assert {each["part"] for each in made["sites"][2:]} == {"waits"}
    assert "--sites=4" in Job.objects.get(pk=made["server"]).spec.args
    assert begin(client, sites=1, remote_sites=1).status_code == 400


def test_an_invitation_is_a_link_that_is_shown_once_and_kept_as_a_hash(client, federation):
    made = invite(client, federation)

    assert made.status_code == 201, made.content
    told = made.json()
    assert (told["name"], told["number"]) == ("clinic-b", 2)
    secret = told["link"].partition("/federated#")[2]
    row = FederationInvitation.objects.get()
    assert secret.startswith("bsite_")
    assert secret not in json.dumps([str(value) for value in vars(row).values()])
    shown = client.send("GET", f"/federated/{federation.pk}")
    assert secret not in shown.content.decode()
    assert (shown.json()["sites"][2]["name"], shown.json()["sites"][2]["state"]) == ("clinic-b", "invited")
    assert AuditEntry.objects.filter(action="federation.invited").exists()


def test_inviting_again_replaces_the_link_until_the_site_has_joined(client, federation, anonymous):
    first = Site(anonymous, invite(client, federation).json()["link"])
    again = Site(anonymous, invite(client, federation).json()["link"])

    assert first.send("GET").status_code == 401
    assert again.send("GET").status_code == 200
    answer = invite(client, federation)
    assert answer.status_code == 409
    assert "has joined already" in answer.json()["detail"]


def test_there_are_no_more_invitations_than_sites_and_none_for_a_name_that_cannot_be(client, federation):
    for name in ("b", "c"):
        assert invite(client, federation, name).status_code == 201
    assert "are taken" in invite(client, federation, "d").json()["detail"]
    assert invite(client, federation, "../x").status_code == 400
    assert invite(client, federation, "e", expires_in_s=40 * 86400).status_code == 400
    plain = Federation.objects.get(pk=begin(client, sites=3).json()["id"])
    assert "without sites at other Berths" in invite(client, plain).json()["detail"]


def test_others_neither_invite_nor_revoke_nor_see(client, client_of, bob, federation, site):
    other = client_of(bob)

    assert invite(other, federation, "mine").status_code == 404
    assert other.send("DELETE", f"/federated/{federation.pk}/invitations/clinic-b").status_code == 404
    assert site.send("GET").status_code == 200


def test_the_door_opens_to_the_invitation_and_to_no_persons_token(client, root, client_of, site, anonymous):
    told = site.send("GET").json()

    assert (told["number"], told["sites"], told["name"], told["protocol"]) == (2, 4, "clinic-b", 1)
    assert (told["rounds"], told["learning_rate"], told["clip"]) == (2, 0.05, None)
    for path in ("", "/messages"):
        assert client_of(root).send("GET", f"/rounds{path}").status_code == 401
        assert anonymous.send("GET", f"/rounds{path}").status_code == 401
        assert site.send("GET", path, secret="bsite_" + "x" * 43).status_code == 401
    for path in ("/jobs", "/federated", "/me", "/datasets", "/devices"):
        assert anonymous.send("GET", path, Authorization=f"Token {site.secret}").status_code == 401


def test_a_message_to_a_site_is_sent_until_the_site_says_that_it_was_read(site, federation):
    assert site.send("GET", "/messages").status_code == 204
    folder = folder_of(federation, 2, "to")
    for number in (1, 2):
        (folder / f"{number:012d}.message").write_bytes(b"weights %d" % number)

    first = site.send("GET", "/messages")
    again = site.send("GET", "/messages")
    assert b"".join(first.streaming_content) == b"".join(again.streaming_content) == b"weights 1"
    done = first.headers["X-Message-Id"]
    for _ in range(2):  # an answer that was lost on its way is asked for again
        second = site.send("GET", f"/messages?done={done}")
        assert b"".join(second.streaming_content) == b"weights 2"
    assert site.send("GET", f"/messages?done={second.headers['X-Message-Id']}").status_code == 204
    assert not list(folder.iterdir())


def test_a_message_of_a_site_is_passed_on_once_however_often_it_is_sent(site, federation):
    folder = folder_of(federation, 2, "from")
    message = "a" * 32

    assert site.put(b"upd", message, size=6).json() == {"received_bytes": 3}
    assert site.put(b"upd", message, size=6).json() == {"received_bytes": 3}
    assert not list(folder.glob("*")) if folder.exists() else True
    assert site.put(b"ate", message, offset=9, size=12).status_code == 409
    for _ in range(3):
        assert site.put(b"ate", message, offset=3, size=6).json() == {"received_bytes": 6}
    assert [each.read_bytes() for each in folder.iterdir()] == [b"update"]
    next(folder.iterdir()).unlink()  # the server's job has read it
    assert site.put(b"ate", message, offset=3, size=6).status_code == 200
    assert not list(folder.iterdir())
    site.put(b"next")
    assert [each.name for each in folder.iterdir()] == ["000000000002.message"]


def test_messages_of_a_site_are_bounded_in_size_and_number(site, federation):
    answer = site.put(b"x", size=door.LEAST_ALLOWED_BYTES + 1)
    assert answer.status_code == 413
    big = folder_of(federation, 2, "to")
    big.mkdir(parents=True)
    (big / "000000000001.message").write_bytes(bytes(3 << 20))
    assert len(b"".join(site.send("GET", "/messages").streaming_content)) == 3 << 20
    assert site.put(b"x", size=door.LEAST_ALLOWED_BYTES + 1).status_code == 200
    for _ in range(door.MOST_WAITING):
        assert site.put(b"x").status_code == 200
    full = site.put(b"x")
    assert (full.status_code, full.headers["Retry-After"]) == (429, "1")
    assert site.put(b"x", "../../x").status_code in {400, 404}
    assert site.put(b"x", "A" * 32).status_code == 400


@pytest.mark.parametrize("value", HOSTILE_VALUES)
def test_no_name_of_a_message_answers_500(site, value):
    assert site.put(b"x", value).status_code in {400, 404}


def test_links_that_a_job_puts_into_the_folders_are_not_followed(site, federation, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of the server")
    to_site, from_site = folder_of(federation, 2, "to"), folder_of(federation, 2, "from")
    to_site.mkdir(parents=True)
    (to_site / "000000000001.message").symlink_to(secret)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    from_site.symlink_to(elsewhere)

    assert site.send("GET", "/messages").status_code == 204
    assert site.put(b"x").status_code == 410
    assert not list(elsewhere.iterdir())


def test_a_site_that_was_revoked_is_told_so_and_the_rounds_do_not_wait_for_it(client, site, federation):
    assert site.send("GET").status_code == 200
    for _ in range(2):
        path = f"/federated/{federation.pk}/invitations/clinic-b"
        assert client.send("DELETE", path).status_code == 204
    advance(federation)

    refused = site.send("GET", "/messages")
    assert refused.status_code == 403
    assert refused.json()["detail"] == "The invitation of the site clinic-b was revoked."
    assert (exchanges.root_of(federation.pk) / "told" / "2").read_text() == "its invitation was revoked"
    row = client.send("GET", f"/federated/{federation.pk}").json()["sites"][2]
    assert (row["state"], row["part"]) == ("revoked", "in_no_round")
    assert client.send("DELETE", f"/federated/{federation.pk}/invitations/nobody").status_code == 404


def test_an_invitation_ends_if_nobody_joins_and_a_seat_if_nobody_is_invited(client, site, federation):
    later = timezone.now() + timedelta(days=8)
    FederationInvitation.objects.update(expires_at=timezone.now() - timedelta(seconds=1))

    assert site.send("GET").status_code == 403
    controller.advance(federation, later)
    told = exchanges.root_of(federation.pk) / "told"
    assert "before it expired" in (told / "2").read_text()
    assert (told / "3").read_text() == "nobody was invited within a day"
    parts = [each["part"] for each in client.send("GET", f"/federated/{federation.pk}").json()["sites"]]
    assert parts[2:] == ["never_joined", "never_joined"]


def test_a_site_that_falls_silent_is_told_of_after_its_patience(site, federation):
    site.send("GET")
    controller.advance(federation, timezone.now() + timedelta(seconds=590))
    told = exchanges.root_of(federation.pk) / "told" / "2"
    assert not told.exists()
    controller.advance(federation, timezone.now() + timedelta(seconds=620))
    assert told.read_text() == "it was not heard from for 600 s"
    assert "left out" in site.send("GET", "/messages").json()["detail"]


def test_a_site_that_asked_within_its_patience_is_no_silent_one(site, federation):
    Federation.objects.filter(pk=federation.pk).update(options={**federation.options, "patience_s": 3.0})
    federation.refresh_from_db()
    site.send("GET")
    heard = FederationInvitation.objects.get(federation=federation).seen_at
    assert heard is not None
    told = exchanges.root_of(federation.pk) / "told" / "2"

    controller.advance(federation, heard + timedelta(seconds=7.5))  # it may have asked 4.9 s later
    assert not told.exists()
    controller.advance(federation, heard + timedelta(seconds=8.5))
    assert told.exists()


def test_a_site_hears_that_its_federation_is_over(client, site, federation, home):
    site.send("GET")
    leave(home, server_of(federation))
    end_jobs(federation, JobState.SUCCEEDED, of_server=True)
    end_jobs(federation, JobState.SUCCEEDED, of_server=False)
    advance(federation)

    over = site.send("GET", "/messages")
    assert (over.status_code, over.json()["detail"]) == (410, f"The federation {federation.name} is ended.")
    assert site.put(b"x").status_code == 410


LINK = "https://berth.example.org/federated#bsite_" + "k" * 43


def join(client, **fields):
    body = {"invitation": LINK, "model": "train.py:build_model", "job": ASKED["job"]}
    return client.send("POST", "/federated/join", {**body, **fields})


def test_joining_is_a_job_whose_invitation_is_a_secret(client, ada):
    made = join(client)

    assert made.status_code == 201, made.content
    job = Job.objects.get(pk=made.json()["id"])
    assert job.spec.module == "training.federated"
    (name,) = job.spec.secrets
    assert job.spec.args == [
        "--part=site",
        f"--join={name}",
        "--model=train.py:build_model",
        "--data=train.py",
    ]
    assert "bsite_" not in made.content.decode()
    assert name.startswith("FEDERATION_INVITATION_")
    Job.objects.update(state=JobState.SUCCEEDED)
    assert join(client, invitation=LINK[:-1] + "z").status_code == 201
    assert JobSecret.objects.count() == 1  # that of the job that has ended is gone


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        pytest.param({"invitation": "https://berth.example.org/federated"}, "no invitation", id="no secret"),
        pytest.param({"invitation": "x"}, "no invitation", id="no link"),
        pytest.param({"invitation": LINK.replace("https", "http")}, "in the open", id="no HTTPS"),
        pytest.param({"job": {"args": ["x"]}}, "args is not for sites", id="arguments"),
        pytest.param({"model": "--help"}, "model", id="an option as function"),
    ],
)
def test_a_join_that_cannot_work_is_refused(client, fields, words):
    answer = join(client, **fields)

    assert answer.status_code == 400
    assert words in answer.content.decode()
    assert not Job.objects.exists()
    assert not JobSecret.objects.exists()


def test_a_pool_without_network_is_refused_at_the_submission(client):
    Pool.objects.update(network=Network.NONE)

    answer = join(client)

    assert answer.status_code == 422
    assert "have no network" in answer.json()["errors"]["pool"][0]
    assert not JobSecret.objects.exists()
