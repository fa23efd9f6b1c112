"""The page of what-ifs: for operators, and it never waits for a replay itself."""

from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.models import Attempt, AttemptState, ExitKind, JobState, Lease
from orchestrator.scheduler.forecast import replay_runs
from tests.dashboard.markup import html_of

FORM = {"pool": "default", "days": "7", "more": "1", "split": "", "slices": "7", "fifo": "1"}


class _Child:
    def poll(self) -> None:
        return None


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """The keys of the replays that were begun; the test answers them itself."""
    keys: list[str] = []

    def begin(command: list[str], **_: object) -> _Child:
        keys.append(command[-1])
        return _Child()

    monkeypatch.setattr("subprocess.Popen", begin)
    return keys


@pytest.fixture
def an_ended_job(make_job, make_device, ada):
    end = timezone.now() - timedelta(hours=2)
    job = make_job(
        ada,
        state=JobState.SUCCEEDED,
        submitted_at=end - timedelta(hours=2),
        ended_at=end,
        seconds_run=3600,
        attempt_count=1,
    )
    attempt = Attempt.objects.create(
        job=job, number=1, nonce="0", state=AttemptState.ENDED, kind=ExitKind.OK, created_at=job.submitted_at
    )
    Lease.objects.create(
        attempt=attempt, device=make_device(0), rank=0, started_at=end - timedelta(hours=1), ended_at=end
    )


def test_who_operates_nothing_finds_no_page(reader, ada, make_pool):
    make_pool()

    assert reader(ada).get("/usage/what-if").status_code == 404
    assert reader(ada).post("/usage/what-if", FORM).status_code == 404
    assert "What if" not in html_of(reader(ada).get("/usage"))


def test_who_is_not_signed_in_is_asked_to(db, client, home):
    assert client.get("/usage/what-if").status_code == 302
    assert client.get(f"/usage/what-if/{'0' * 32}").status_code == 302


def test_an_operator_asks_waits_and_reads_the_answer(reader, root, an_ended_job, asked):
    page = reader(root)

    sent = page.post("/usage/what-if", FORM)
    waiting = page.get(sent["Location"])
    replay_runs.work_on(asked[0])
    read = page.get(sent["Location"])

    assert sent.status_code == 302
    assert "Replaying" in html_of(waiting)
    assert waiting["Refresh"].startswith("2; url=/usage/what-if/")
    html = html_of(read)
    assert "Refresh" not in read
    for name in ("what happened", "as it is now", "1 device more", "first come, first served"):
        assert f'<th scope="row">{name}' in html
    assert "1 h" in html


def test_the_same_question_is_not_replayed_twice(reader, root, an_ended_job, asked):
    for _ in range(3):
        reader(root).post("/usage/what-if", FORM)

    assert len(asked) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("more", "many"),
        ("more", "-9"),
        ("more", "1e9"),
        ("split", "50"),
        ("slices", "99"),
        ("pool", "x"),
        ("days", "0"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_begun(field, value, reader, root, an_ended_job, asked):
    answer = reader(root).post("/usage/what-if", {**FORM, "split": "1", field: value})

    assert answer.status_code == 400
    assert 'class="error"' in html_of(answer)
    assert asked == []


@pytest.mark.parametrize("key", ["0" * 32, "x", "..%2f..%2fdb", "A" * 32])
def test_an_unknown_answer_is_not_found(key, reader, root, make_pool):
    make_pool()

    assert reader(root).get(f"/usage/what-if/{key}").status_code == 404
