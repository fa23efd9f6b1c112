"""A model with versions, a result, reports of every outcome, and services: asked, failed, and broken in the database."""

import hashlib
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from orchestrator.facts.events import ServiceFact
from orchestrator.facts.record import fact
from orchestrator.jobs import pushing
from orchestrator.models import (
    Dataset,
    Job,
    JobState,
    ModelRecipe,
    ModelVersion,
    Pool,
    RecipeOutcome,
    Service,
    ServiceReplica,
)
from orchestrator.services import keys
from orchestrator.store.layout import Home

NAME = "digits"
FIGURES = {"size_bytes": 44_800_000, "latency_ms": 3.25, "memory_bytes": 51_000_000}


def report_of(after: float, *, passed: bool | None) -> dict[str, Any]:
    """A report with both sides, and a gate unless ``passed`` is None."""
    before = [
        {"name": "accuracy", "value": 0.981, "low": 0.964, "high": 0.993},
        {"name": "loss", "value": 0.0612},
    ]
    gate = {"metric": "accuracy", "before": 0.981, "after": after, "limit": 0.961, "higher_is_better": True}
    return {
        "before": {"metrics": before, **FIGURES},
        "after": {"metrics": [{"name": "accuracy", "value": after}, *before[1:]], **FIGURES},
        "gate": None if passed is None else {**gate, "passed": passed},
        "facts": {"smaller": 3.8, "int8 weights": 12, "operator that is unknown": "aten." + "long_name_" * 6},
        "left_out": [f"encoder.layers.{number}.attention.output.weight" for number in range(12)],
    }


def fill_models(home: Home, me: User, job: Job, pool: Pool) -> list[str]:
    """The addresses of the pages of a model and of services."""
    values = {"val/accuracy": 0.981, "val/loss": 0.0612, "train/loss": 0.0231}
    versions = [_version(home, me, NAME, number, job, values) for number in (1, 2, 3)]
    small = _version(home, me, f"{NAME}-int8", 1, job, {"accuracy": 0.975})
    newest = versions[-1]
    _recipe(newest, job, "quantize", RecipeOutcome.MADE, report_of(0.975, passed=True), result=small)
    for number, (kind, outcome, report) in enumerate(
        (
            ("prune", RecipeOutcome.GATE_FAILED, report_of(0.61, passed=False)),
            ("evaluate", RecipeOutcome.MEASURED, report_of(0.981, passed=None)),
            (
                "export",
                RecipeOutcome.JOB_ENDED,
                {"error": "ONNX does not know the operator aten::fold; " * 4},
            ),
            ("distil", "", {}),
        )
    ):
        _recipe(newest, None, kind, outcome, report, number=number)
    _service(me, pool, job)
    broken = _service_row(
        me, pool, "broken", state="failed", job_fields={"gpus": "many", "command": ["python"]}
    )
    broken.why = fact(ServiceFact.DIES_AGAIN, times=3, error="out of memory " * 20).as_json()
    broken.save()
    reference = newest.dataset.reference
    return [
        f"/models/{reference}",
        f"/models/{small.dataset.reference}",
        "/services/answers",
        "/services/answers/change",
        "/services/broken",
        "/services/broken/change",
    ]


def _version(
    home: Home, me: User, name: str, number: int, job: Job, values: dict[str, float]
) -> ModelVersion:
    path = f"{me.pk}/sets/{name}/{number}/model.pt"
    file = home.pushed / path
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    dataset = Dataset.objects.create(
        name=name,
        version=str(number),
        path=path,
        owner=me,
        # Of the first version the page says that its files are damaged.
        sha256=pushing.digest_of([("model.pt", hashlib.sha256(b"weights").hexdigest())])
        if number > 1
        else "4f" * 32,
        size_bytes=7,
        description="the one of the paper " * 4,
    )
    return ModelVersion.objects.create(
        dataset=dataset,
        job=job,
        attempt_number=1,
        checkpoint=f"generation {number}",
        step=1000 * number,
        values=values,
    )


def _recipe(
    source: ModelVersion,
    job: Job | None,
    kind: str,
    outcome: str,
    report: dict[str, Any],
    *,
    result: ModelVersion | None = None,
    number: int = 0,
) -> None:
    now = timezone.now()
    ModelRecipe.objects.create(
        kind=kind,
        source=source,
        source_reference=source.dataset.reference,
        job=job,
        options={"model": "train.py:build_model", "max_loss": 0.02, "amount": 0.5} if number == 0 else {},
        outcome=outcome,
        error=report.get("error", ""),
        report=report,
        result=result,
        created_at=now,
        ended_at=now if outcome else None,
    )


def _service_row(me: User, pool: Pool, name: str, **fields: Any) -> Service:
    now = timezone.now()
    return Service.objects.create(
        **{
            "name": name,
            "owner": me,
            "pool": pool,
            "job_fields": {
                "kind": "service",
                "command": ["python", "serve.py", "--weights", "long-" * 30],
                "gpu_memory_gib": 6,
                "env": {"MODE": "fast"},
            },
            "bundle": "0" * 64,
            "idle_s": 600,
            "deadline_s": 2,
            "most_waiting": 100,
            "health_path": "/ready",
            "max_replicas": 2,
            "created_at": now,
            "changed_at": now,
            **fields,
        }
    )


def _service(me: User, pool: Pool, job: Job) -> None:
    traffic = {"requests_per_s": 12.4, "p50_ms": 8.1, "p99_ms": 31.0, "errors": 1, "refused": 3, "late": 0}
    service = _service_row(me, pool, "answers", asked_at=timezone.now(), traffic=traffic, revision=2)
    for name in ("web site", "a-program-with-a-very-long-name-" * 2):
        keys.issue(service, name)
    if job.state == JobState.RUNNING:
        ServiceReplica.objects.create(service=service, job=job, revision=1, ready_attempt=1)
