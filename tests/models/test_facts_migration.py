"""Sentences of an earlier version become facts, and come back from them."""

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from orchestrator.sentences import say_json

BEFORE = [("orchestrator", "0014_devices_kept_for_retries")]
AFTER = [("orchestrator", "0015_facts_of_events_and_endings")]
SENTENCES = [
    ("Submitted.", "submitted", {}),
    ("Cancelled by ada.", "cancelled_by", {"by": "ada"}),
    ("Starts on GPU 0, GPU 1.", "starts", {"devices": ["GPU 0", "GPU 1"]}),
    ("Attempt 1 runs.", "runs", {"attempt": 1}),
    (
        "Attempt 2 runs, resumed from step 1,200.",
        "runs",
        {"attempt": 2, "checkpoint": "step 1,200", "step": 1200},
    ),
    (
        "Fell back from step 20 to step 10: 2 bytes instead of 3.",
        "fell_back",
        {
            "checkpoint": "step 20",
            "step": 20,
            "to_checkpoint": "step 10",
            "to_step": 10,
            "why": "2 bytes instead of 3",
        },
    ),
    (
        "Fell back from generation 4 to the beginning: other bytes: a.pt.",
        "fell_back",
        {
            "checkpoint": "generation 4",
            "step": None,
            "to_checkpoint": None,
            "to_step": None,
            "why": "other bytes: a.pt",
        },
    ),
    (
        "Fell back from checkpoint step 5 to the beginning: torn",
        "run_fell_back",
        {"from_step": "5", "to_step": None, "why": "torn"},
    ),
    (
        "train/loss became NaN or infinite at step 1,024: the training diverged.",
        "diverged",
        {"name": "train/loss", "step": 1024},
    ),
    (
        "It has reported nothing for 10 min or longer (the last step was 1,024). "
        "Its log and the use of its devices may say why.",
        "silent",
        {"step": 1024},
    ),
    (
        "out/last.pt looks like a checkpoint and is kept, though it lies outside the checkpoint folder.",
        "outside_kept",
        {"path": "out/last.pt"},
    ),
    (
        "out/last.pt was written 2 times outside the checkpoint folder and is not kept; keep it from now on with "
        "--checkpoint-glob 'out/*.pt', or with one click on the job's page.",
        "outside_not_kept",
        {"path": "out/last.pt", "times": 2, "glob": "out/*.pt"},
    ),
    (
        "Something that nobody says any longer.",
        "told",
        {"sentence": "Something that nobody says any longer."},
    ),
    ("", "", {}),
]


@pytest.fixture
def at_old_schema(transactional_db):
    executor = MigrationExecutor(connection)
    latest = executor.loader.graph.leaf_nodes()
    executor.migrate(BEFORE)
    yield executor.loader.project_state(BEFORE).apps
    MigrationExecutor(connection).migrate(latest)


@pytest.mark.slow
def test_sentences_become_facts_and_come_back(at_old_schema):
    job, attempt = make_rows(at_old_schema)

    executor = MigrationExecutor(connection)
    executor.migrate(AFTER)
    apps = executor.loader.project_state(AFTER).apps
    events = apps.get_model("orchestrator", "JobEvent").objects.order_by("number")
    turned = apps.get_model("orchestrator", "Job").objects.get(pk=job.pk)

    assert [(each.kind, each.data) for each in events] == [(code, facts) for _, code, facts in SENTENCES]
    assert say_json(turned.why) == job.reason
    assert turned.why["facts"]["ending"] == turned.ending  # the page shows it once
    assert (turned.wait_code, turned.wait_facts) == ("devices", {"sentence": "Waits for 1 GPU."})
    ended = apps.get_model("orchestrator", "Attempt").objects.get(pk=attempt.pk).ending
    assert say_json(ended) == "Rank 0 was killed."

    executor = MigrationExecutor(connection)
    executor.migrate(BEFORE)
    back = executor.loader.project_state(BEFORE).apps.get_model("orchestrator", "JobEvent")
    assert list(back.objects.order_by("number").values_list("reason", flat=True)) == [
        sentence for sentence, _, _ in SENTENCES
    ]


def make_rows(apps):
    """A job of the earlier version, with one event for each sentence."""
    now = timezone.now()
    user = apps.get_model("auth", "User").objects.create(username="old-ada")
    pool = apps.get_model("orchestrator", "Pool").objects.create(name="old")
    job = apps.get_model("orchestrator", "Job").objects.create(
        owner_id=user.pk,
        pool_id=pool.pk,
        name="old",
        spec_fields={},
        bundle="0" * 64,
        submitted_at=now,
        queued_at=now,
        state="failed",
        reason="Rank 0 was killed. All 3 retries are used.",
        exit_detail="Rank 0 was killed.",
        wait_code="devices",
        wait_sentence="Waits for 1 GPU.",
    )
    attempt = apps.get_model("orchestrator", "Attempt").objects.create(
        job_id=job.pk, number=1, nonce="n", created_at=now, exit_detail="Rank 0 was killed."
    )
    event = apps.get_model("orchestrator", "JobEvent")
    event.objects.bulk_create(
        event(job_id=job.pk, number=number, at=now, to_state="failed", actor="a", reason=sentence)
        for number, (sentence, _, _) in enumerate(SENTENCES, start=1)
    )
    return job, attempt
