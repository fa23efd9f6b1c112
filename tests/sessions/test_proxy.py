"""What goes through the proxy to a session's program and back: requests, streams, websockets."""

import json

import pytest
from django.contrib.sessions.models import Session
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from orchestrator.jobs import lifecycle
from orchestrator.models import SessionPass
from orchestrator.sessions.proxy import plain

pytestmark = pytest.mark.django_db(transaction=True)


def cookie_of(browser) -> str:
    return "; ".join(f"{name}={value}" for name, value in browser.cookies.items())


def test_owner_reaches_the_program_by_ticket_and_cookie(ada, make_session, enter, port):
    job = make_session()
    browser = enter(ada, job)

    told = browser.get("lab?x=1%20y").json()

    assert told["path"] == f"/s/{job.pk}/lab"
    assert told["query"] == "x=1%20y"


def test_credentials_for_berth_never_reach_the_program(ada, make_session, enter):
    browser = enter(ada, make_session())
    browser.cookies.set("berth_session", "secret", domain="127.0.0.1")
    browser.cookies.set("_xsrf", "theirs", domain="127.0.0.1")

    told = browser.get(
        "api",
        headers={
            "Authorization": "Token secret",
            "X-CSRFToken": "secret",
            "X-Forwarded-For": "1.2.3.4",
            "Connection": "x-hop",
            "X-Hop": "1",
            "X-Kept": "1",
        },
    ).json()

    sent = dict(told["headers"])
    assert "secret" not in json.dumps(told)
    assert sent["cookie"] == "_xsrf=theirs"
    assert not {"authorization", "x-csrftoken", "x-forwarded-for", "x-hop"} & set(sent)
    assert sent["x-kept"] == "1"


def test_program_sets_cookies_for_its_own_paths_only(ada, make_session, enter):
    job = make_session()
    browser = enter(ada, job)

    answer = browser.get("")

    assert answer.headers.get_list("set-cookie") == [f"theirs=1; Path=/s/{job.pk}/"]
    assert "service-worker-allowed" not in answer.headers


def test_body_of_unknown_length_arrives_whole(ada, make_session, enter):
    browser = enter(ada, make_session())

    def chunks():
        for _ in range(64):
            yield b"x" * 100_000

    told = browser.put("api/contents/big.bin", content=chunks()).json()

    assert (told["method"], told["length"]) == ("PUT", 6_400_000)


def test_request_without_a_body_arrives_as_it_is(ada, make_session, enter):
    browser = enter(ada, make_session())

    for method in ("POST", "PATCH", "DELETE"):
        assert browser.request(method, "api/kernels").json()["method"] == method


def test_large_answer_streams_whole(ada, make_session, enter):
    browser = enter(ada, make_session())

    with browser.stream("GET", f"?{64 * 65536}") as answer:
        assert sum(len(piece) for piece in answer.iter_raw()) == 64 * 65536


def test_websocket_carries_text_bytes_and_its_subprotocol(ada, make_session, enter, port):
    job = make_session()
    browser = enter(ada, job)
    address = port.base(job).replace("http", "ws") + "api/kernels/1/channels"

    with connect(
        address,
        origin=port.origin,
        additional_headers={"Cookie": f"{cookie_of(browser)}; berth_session=secret"},
        subprotocols=[Subprotocol("v1.kernel.websocket.jupyter.org")],
        compression=None,
    ) as channel:
        told = channel.recv()
        channel.send("a key")
        text = channel.recv()
        channel.send(b"\x00" * 1_000_000)
        data = channel.recv()

    assert channel.subprotocol == "v1.kernel.websocket.jupyter.org"
    assert "secret" not in told
    assert (text, len(data)) == ("a key", 1_000_000)


def test_program_that_does_not_listen_yet_is_named_and_asked_again(ada, make_session, enter):
    answer = enter(ada, make_session(listens=False)).get("")

    assert answer.status_code == 503
    assert "does not answer yet" in answer.text
    assert answer.headers["refresh"] == "2"


@pytest.mark.parametrize(
    ("accepted", "chosen", "lang", "words"),
    [
        ("de-DE,de;q=0.9,en;q=0.8", None, "de", "antwortet noch nicht"),
        ("de", "en", "en", "does not answer yet"),
        ("*;;q=x", None, "en", "does not answer yet"),
    ],
    ids=["of the browser", "chosen", "unreadable"],
)
def test_page_of_refusal_is_in_the_language_of_its_reader(
    ada, make_session, enter, accepted, chosen, lang, words
):
    browser = enter(ada, make_session(listens=False))
    if chosen:
        browser.cookies.set("berth_language", chosen, domain="127.0.0.1")

    answer = browser.get("", headers={"Accept-Language": accepted})

    assert f"<html lang={lang}>" in answer.text
    assert words in answer.text


def test_session_that_ended_says_so(ada, make_session, enter):
    job = make_session()
    browser = enter(ada, job)
    lifecycle.cancel(job, by="ada")

    answer = browser.get("")

    assert answer.status_code == 503
    assert "stopping" in answer.text


def test_pass_ends_with_the_sign_in(ada, make_session, enter):
    browser = enter(ada, make_session())
    browser.berth.post("/logout")

    assert not Session.objects.exists()
    assert browser.get("").status_code == 401


@pytest.mark.parametrize("change", ["password", "disabled", "viewer"])
def test_pass_ends_with_the_account(ada, make_session, enter, change):
    browser = enter(ada, make_session())
    if change == "password":
        ada.set_password("another")
    elif change == "disabled":
        ada.is_active = False
    else:
        from orchestrator.models import Person, Role

        Person.objects.update_or_create(user=ada, defaults={"role": Role.VIEWER})
    ada.save()

    assert browser.get("").status_code == 401


def test_open_websocket_closes_when_the_pass_ends(ada, make_session, enter, port, monkeypatch):
    job = make_session()
    browser = enter(ada, job)
    monkeypatch.setattr(plain, "AGAIN_S", 0.01)
    with connect(
        port.base(job).replace("http", "ws"),
        origin=port.origin,
        additional_headers={"Cookie": cookie_of(browser)},
    ) as channel:
        channel.recv()
        SessionPass.objects.all().delete()

        with pytest.raises(ConnectionClosed):
            channel.recv()

    assert channel.close_code == 1008


def test_websocket_to_a_program_that_refuses_it_is_refused(ada, make_session, enter, port):
    job = make_session(listens=False)
    browser = enter(ada, job)

    with pytest.raises(InvalidStatus) as refused:
        connect(
            port.base(job).replace("http", "ws"),
            origin=port.origin,
            additional_headers={"Cookie": cookie_of(browser)},
        )

    assert refused.value.response.status_code == 403
