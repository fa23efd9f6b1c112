"""A submit of one script, for tests."""

from typing import Any

from django.contrib.auth.models import User

from orchestrator.jobs.submission import intake
from orchestrator.jobs.submission.intake import parse_spec


def submit(user: User, text: str = "print(1)\n", *, key: str | None = None, **fields: Any) -> intake.Accepted:
    spec = parse_spec({"source": {"text": text}, **fields})
    return intake.accept(user, spec, idempotency_key=key)
