"""Telling people outside of the pages: what is news, where it may go, and that it is told once."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from django.utils import timezone, translation

from benchmarks.played_sweeps import play
from orchestrator.exceptions import Malformed
from orchestrator.facts.events import Happened, SweepFact
from orchestrator.facts.record import fact, sentence_only
from orchestrator.jobs import lifecycle
from orchestrator.models import JobEvent, JobState, Notice, NoticeTarget, SweepState
from orchestrator.people.notices import delivery, events, targets
from orchestrator.people.notices.reach import is_public
from orchestrator.sentences.errors import messages_of
from orchestrator.sweeps.ending import end


class Inbox(ThreadingHTTPServer):
    """A webhook on this machine; ``answers`` are the codes it gives, 200 when there are none left."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Hook)
        self.got: list[dict[str, str]] = []
        self.answers: list[int] = []
        self.redirect_to = ""


class _Hook(BaseHTTPRequestHandler):
    server: Inbox

    def do_POST(self) -> None:
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        code = self.server.answers.pop(0) if self.server.answers else 200
        self.send_response(302 if self.server.redirect_to else code)
        if self.server.redirect_to:
            self.send_header("Location", self.server.redirect_to)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def inbox(settings, home) -> Iterator[Inbox]:
    """Its address, 127.0.0.1, is allowed by the operator."""
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, notify_allow=("127.0.0.1",))
    server = Inbox()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def target(inbox, ada) -> NoticeTarget:
    url = f"json://127.0.0.1:{inbox.server_port}/hook"
    return targets.add(ada, url, ["started", "finished", "failed", "retried", "warning"])


REFUSED = [
    "jsons://169.254.169.254/latest",
    "jsons://[::ffff:169.254.169.254]/x",
    "jsons://0xA9FEA9FE/x",
    "jsons://2852039166/x",
    "jsons://127.0.0.1:6379/",
    "jsons://localhost./x",
    "jsons://localhost/x",
    "jsons://0.0.0.0/x",
    "jsons://[::1]/x",
    "jsons://public.example@127.0.0.1/x",
    "json://192.0.2.1/x",
    "ntfy://127.0.0.1:1/x",
    "ntfys://127.0.0.1/x",
    "ntfys://2130706433/x",
    "ntfys://[::1]/x",
    "zulip://bot@127.0.0.1/a6k4bEPVbpjHxQkTnYzjzFaFkR3jdJbz",
    "mailtos://ana:pw@public.example?smtp=127.0.0.1&to=ana@public.example",
    "matrixs://ana:pw@10.0.0.1/#room",
    "file:///etc/passwd",
    "gopher://public.example/x",
    "syslog://",
    "dbus://",
    "not an address",
    "",
    "jsons://a\nb",
]


@pytest.mark.slow
def test_b66_addresses_inside_the_network_are_refused_when_they_are_saved(ada, home):
    for url in REFUSED:
        with pytest.raises(Malformed) as refusal:
            pytest.fail(f"{targets.add(ada, url, ['failed'])} was taken")
        assert "url" in refusal.value.fields, url
    assert not NoticeTarget.objects.exists()


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),  # noqa: S104  # refused, not bound
        *(
            "::1",
            "::ffff:10.0.0.1",
            "fe80::1",
            "fd00::1",
            "64:ff9b::a00:1",
            "::10.0.0.1",
            "2002:7f00:1::",
            "224.0.0.1",
        ),
        *("ff02::1", "not-an-address"),
    ],
)
def test_b66_what_is_not_public_is_known_in_every_disguise(address):
    assert not is_public(address)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ntfy://127.0.0.1:1/x", "127.0.0.1 is inside this network. Ask the server's operator to allow it."),
        ("ntfys://0x7f000001/x", "0x7f000001 is inside this network. Ask the server's operator to allow it."),
        ("ntfy://1.1.1.1/x", "ntfy:// is not encrypted. Use ntfys://."),
        ("jsons://nowhere.invalid/x", "The host nowhere.invalid cannot be found."),
        (
            "file:///etc/passwd",
            "This is not an address for notifications. See the list of services in the docs.",
        ),
    ],
)
def test_b66_the_reason_why_an_address_is_refused_is_exact(ada, home, url, sentence):
    with pytest.raises(Malformed) as refusal:
        targets.add(ada, url, ["failed"])

    assert refusal.value.fields == {"url": [sentence]}


def test_the_reason_is_said_in_the_readers_language(ada, home):
    with pytest.raises(Malformed) as refusal:
        targets.add(ada, "jsons://nowhere.invalid/x", ["failed"])

    with translation.override("de"):
        assert messages_of(refusal.value) == {"url": ["Der Host nowhere.invalid ist nicht zu finden."]}


def test_an_address_that_is_saved_is_not_written_to(ada, inbox):
    target = targets.add(ada, f"json://127.0.0.1:{inbox.server_port}/hook", ["failed"])

    assert target.shown.startswith("json://127.0.0.1")
    assert inbox.got == []
    assert targets.add(ada, "ntfy://topic-of-ana", ["failed"]).shown == "ntfys://topic-of-ana"


def test_public_addresses_are_public():
    assert is_public("1.1.1.1")
    assert is_public("2606:4700:4700::1111")
    assert is_public("::ffff:1.1.1.1")


def test_b66_an_address_that_stopped_being_allowed_is_refused_when_it_is_sent(target, inbox, settings):
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, notify_allow=())

    assert (
        targets.try_out(target) == "127.0.0.1 is inside this network. Ask the server's operator to allow it."
    )
    with translation.override("de"):
        assert "in diesem Netz" in target.last_error
    assert inbox.got == []


def test_b66_a_redirect_into_the_network_is_not_followed(target, inbox):
    inbox.redirect_to = "http://127.0.0.2:9/secret"  # another address than the one that is allowed

    assert targets.try_out(target) is not None


def test_a_test_arrives(target, inbox):
    assert targets.try_out(target) is None

    assert [each["title"] for each in inbox.got] == ["Test from Berth"]


def test_the_end_of_a_job_is_told_once_however_often_it_is_read(target, inbox, make_job):
    job = make_job()
    lifecycle.fail_waiting(job, why=sentence_only("Pool default can never fit it."))
    now = timezone.now()

    for _ in range(3):
        events.collect(now, now - timedelta(minutes=1))
        delivery.deliver_due(now)

    assert [(each["title"], each["message"]) for each in inbox.got] == [
        ("digits: failed", "Pool default can never fit it.")
    ]


def test_ones_own_cancel_is_no_news_and_anothers_is(target, make_job, bob):
    lifecycle.cancel(make_job(), by="ada")
    lifecycle.cancel(make_job(), by="bob")
    now = timezone.now()

    events.collect(now, now - timedelta(minutes=1))

    assert [notice.title for notice in Notice.objects.all()] == ["digits: cancelled"]


def test_only_what_was_chosen_is_told(inbox, ada, make_job):
    targets.add(ada, f"json://127.0.0.1:{inbox.server_port}/", ["finished"])
    lifecycle.fail_waiting(make_job(), why=sentence_only("No."))
    now = timezone.now()

    assert events.collect(now, now - timedelta(minutes=1)) == 0


def test_nobody_is_told_about_anothers_job(target, make_job, bob):
    lifecycle.fail_waiting(make_job(owner=bob), why=sentence_only("No."))
    now = timezone.now()

    assert events.collect(now, now - timedelta(minutes=1)) == 0


@pytest.mark.slow
def test_what_does_not_arrive_is_tried_again_and_then_given_up(target, inbox, make_job):
    inbox.answers = [500] * 9
    lifecycle.fail_waiting(make_job(), why=sentence_only("No."))
    now = timezone.now()
    events.collect(now, now - timedelta(minutes=1))

    for _ in range(len(delivery.AGAIN_AFTER_S) + 1):
        now += timedelta(hours=1)
        delivery.deliver_due(now)

    notice = Notice.objects.get()
    assert (notice.tries, notice.next_try_at, notice.sent_at) == (4, None, None)
    target.refresh_from_db()
    assert target.last_why["code"] == "notice_refused"
    assert target.last_error.startswith("The service answered: ")
    with translation.override("de"):
        assert target.last_error.startswith("Der Dienst antwortete: ")
    assert delivery.deliver_due(now + timedelta(days=1)) == 0


def test_a_remark_of_a_watcher_is_a_warning_and_one_of_a_person_is_not(target, make_job):
    job = make_job(state=JobState.RUNNING)
    lifecycle.remark(job, fact(Happened.DIVERGED, name="loss", step=8), actor="agent")
    lifecycle.remark(job, fact(Happened.CHANGED, changes={"priority": 60}), actor="ada")
    now = timezone.now()

    events.collect(now, now - timedelta(minutes=1))

    assert [(notice.title, notice.body) for notice in Notice.objects.all()] == [
        ("digits: needs attention", "loss became NaN or infinite at step 8: the training diverged.")
    ]


def test_the_address_is_kept_sealed_and_shown_masked(ada, inbox):
    url = f"json://ada:hunter2@127.0.0.1:{inbox.server_port}/hook"

    target = targets.add(ada, url, ["failed"])

    assert "hunter2" not in target.shown
    assert b"hunter2" not in bytes(target.sealed)


def test_a_sweep_is_told_at_its_first_failure_and_at_each_end_and_its_trials_never(target, ada):
    sweep = play(ada, 4, state="running", all_failed=True, curves=False)
    now = timezone.now()
    trials = list(sweep.trials.order_by("number"))
    for trial in trials:
        JobEvent.objects.create(
            job=trial.job, number=2, at=now, from_state="running", to_state="failed", actor="agent"
        )
        sweep.trials.filter(pk=trial.pk).update(ended_at=now + timedelta(seconds=trial.number))

    assert events.collect(now, now - timedelta(minutes=1)) == 1
    assert Notice.objects.get().title == "digits sweep: trial 0 failed, the first of the sweep"

    end(sweep, SweepState.FAILED, fact(SweepFact.SAME_ERROR, times=3, error="ValueError"))
    for _ in range(2):
        events.collect(now, now - timedelta(minutes=1))
    assert Notice.objects.latest("pk").title == "digits sweep: has failed"
    assert Notice.objects.count() == 2

    sweep.__class__.objects.filter(pk=sweep.pk).update(state=SweepState.RUNNING, ended_at=None)
    end(sweep, SweepState.ENDED, fact(SweepFact.TRIALS_SPENT, trials=4))
    events.collect(now, now - timedelta(minutes=1))
    assert Notice.objects.latest("pk").body == "All 4 trials of its budget have run."
    assert Notice.objects.count() == 3


def test_who_stops_their_sweep_is_not_told_so(target, ada):
    sweep = play(ada, 0, state="running")
    end(sweep, SweepState.STOPPED, fact(SweepFact.STOPPED_BY, by="ada"))

    now = timezone.now()
    assert events.collect(now, now - timedelta(minutes=1)) == 0


@pytest.mark.parametrize(
    ("kind", "text", "address"),
    [
        ("email", " ana@lab.org ", "email:ana@lab.org"),
        ("slack", "https://hooks.slack.com/services/T0/B0/x", "https://hooks.slack.com/services/T0/B0/x"),
        ("ntfy", "anas-runs-7f3a", "ntfys://anas-runs-7f3a"),
        ("ntfy", "https://ntfy.sh/anas-runs", "ntfys://anas-runs"),
        ("ntfy", "https://push.lab.org/anas-runs", "ntfys://push.lab.org/anas-runs"),
        ("other", "tgram://token/chat", "tgram://token/chat"),
    ],
)
def test_a_kind_and_a_text_are_an_address(kind, text, address):
    assert targets.address_of(kind, text) == address


@pytest.mark.parametrize(
    ("kind", "text"), [("slack", "https://elsewhere.example/x"), ("ntfy", "two words"), ("fax", "1")]
)
def test_a_text_that_is_none_of_its_kind_is_refused(kind, text):
    with pytest.raises(Malformed):
        targets.address_of(kind, text)


def test_mail_is_offered_where_the_server_has_an_account(settings):
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, mail_url="")
    assert "email" not in targets.kinds()
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, mail_url="mailtos://a:b@lab.org")
    assert next(iter(targets.kinds())) == "email"
