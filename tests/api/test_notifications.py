"""Addresses for notifications over REST."""

from orchestrator.facts.events import NoticeFact
from orchestrator.facts.record import fact
from orchestrator.models import NoticeTarget


def test_an_address_is_refused_with_the_reason_at_its_field(client_of, ada):
    answer = client_of(ada).send("POST", "/notifications", {"url": "jsons://127.0.0.1/x"})

    assert answer.status_code == 400
    assert "inside this network" in answer.json()["errors"]["url"][0]


def test_another_persons_address_can_be_neither_seen_tried_nor_removed(client_of, ada, bob, home):
    target = NoticeTarget.objects.create(user=ada, sealed=b"x", shown="slack://...", occasions=["failed"])
    client = client_of(bob)

    assert client.send("GET", "/notifications").json()["results"] == []
    assert client.send("POST", f"/notifications/{target.pk}/test").status_code == 404
    client.send("DELETE", f"/notifications/{target.pk}")
    assert NoticeTarget.objects.filter(pk=target.pk).exists()


def test_an_unknown_occasion_is_named(client_of, ada):
    answer = client_of(ada).send("POST", "/notifications", {"url": "slack://a/b/c", "occasions": ["lunch"]})

    assert answer.status_code == 400
    assert "started, finished" in answer.json()["errors"]["occasions"][0]


def test_why_a_notification_did_not_arrive_has_its_sentence_code_and_facts(client_of, ada):
    why = fact(NoticeFact.INSIDE_NETWORK, host="nas.lab")
    NoticeTarget.objects.create(user=ada, sealed=b"", shown="a", last_why=why.as_json())
    NoticeTarget.objects.create(user=ada, sealed=b"", shown="b")

    arrived, failed = client_of(ada).send("GET", "/notifications").json()["results"]

    assert failed["last_error"] == "nas.lab is inside this network. Ask the server's operator to allow it."
    assert (failed["last_error_code"], failed["last_error_facts"]) == (
        "notice_inside_network",
        {"host": "nas.lab"},
    )
    assert [arrived[name] for name in ("last_error", "last_error_code", "last_error_facts")] == [None, "", {}]
