"""The page of what-ifs: for operators, and it never waits for a replay itself."""

import json
import subprocess
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from orchestrator.models import Attempt, AttemptState, ExitKind, JobState, Lease
from orchestrator.scheduler.forecast import replay_runs
from orchestrator.scheduler.forecast.replays import Question
from orchestrator.scheduler.simulator.variants import Variant
from tests.dashboard.markup import html_of

FORM = {"pool": "default", "days": "7", "more": "1", "split": "", "slices": "7", "fifo": "1"}


class _Child:
    def poll(self) -> None:
        return None


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """The keys of the replays that were begun; the test answers them itself."""
    keys: list[str] = []
    popen = subprocess.Popen

    def begin(command: list[str], **options: Any) -> Any:
        if "whatif" not in command:
            return popen(command, **options)  # the page tries the sandbox
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


def test_an_answer_to_a_question_asked_in_german_names_its_rows_in_the_language_of_each_reader(
    reader, root, an_ended_job, make_device, asked
):
    make_device(1)
    page = reader(root)
    page.cookies["berth_language"] = "de"

    sent = page.post(
        "/usage/what-if", {**FORM, "more": "2", "split": "2", "no_preemption": "1", "share": "1"}
    )
    replay_runs.work_on(asked[0])
    german = html_of(page.get(sent["Location"]))
    page.cookies["berth_language"] = "en"
    english = html_of(page.get(sent["Location"]))

    for name in ("2 devices more", "2 devices cut into 7", "no preemption", "shared by measured memory"):
        assert f'<th scope="row">{name}' in english
    for name in (
        "was geschah",
        "wie er jetzt ist",
        "2 Geräte mehr",
        "2 Geräte in 7 geteilt",
        "ohne Verdrängen",
    ):
        assert f'<th scope="row">{name}' in german


def test_a_question_of_an_earlier_version_is_read_without_the_names_of_its_variants(home, make_device):
    make_device(0)
    variant = {"name": "2 Geräte more", "more_devices": 2}

    question = Question.read({"pool": "default", "days": 7, "until_s": 0.0, "variants": [variant]})

    assert question.variants == [Variant(more_devices=2)]


def test_why_nothing_can_be_replayed_is_said_in_the_language_of_the_reader(reader, root, make_device, asked):
    make_device(0)
    page = reader(root)

    sent = page.post("/usage/what-if", FORM)
    replay_runs.work_on(asked[0])

    english = html_of(page.get(sent["Location"]))
    page.cookies["berth_language"] = "de"
    german = html_of(page.get(sent["Location"]))
    assert "Pool default has no job that ended in the last 7 days; there is nothing to replay." in english
    assert "Pool default hat keinen Job, der in den letzten 7 Tagen endete" in german


def test_the_problem_of_an_answer_of_an_earlier_version_is_shown_as_it_was_kept(
    reader, root, make_device, asked
):
    make_device(0)
    page = reader(root)

    sent = page.post("/usage/what-if", FORM)
    kept = {"problem": "Pool default has no device; there is nothing to replay."}
    (replay_runs.folder() / f"{asked[0]}.json").write_text(json.dumps(kept))

    assert kept["problem"] in html_of(page.get(sent["Location"]))


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
