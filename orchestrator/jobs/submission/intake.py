"""Accepts jobs: checks, the snapshot of the code, then job, event and outbox row in one transaction."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
from django.contrib.auth.models import AbstractBaseUser, User
from django.db import IntegrityError, OperationalError, connection, transaction
from django.utils import timezone
from pydantic import ValidationError

from orchestrator.exceptions import Malformed, OrchestratorError, Sentence, after_field
from orchestrator.jobs.environments import requests
from orchestrator.jobs.environments.requests import Wanted
from orchestrator.jobs.submission import checks, code, repeated_requests, rows, session_limits, starts
from orchestrator.jobs.submission.code import Upload
from orchestrator.models import (
    Job,
    Pool,
)
from orchestrator.models.transactions import again_when_undone
from orchestrator.people import agents, quotas
from orchestrator.spec.job_spec import JobSpec, problem_text
from orchestrator.spec.plain_text import refuse_unwritable
from orchestrator.store.bundles import bundles

LONGEST_TURN_S = 5.0
_turn = threading.Lock()
RESOLVED = ("pool", "datasets", "depends_on")  # replaced by what they stand for at the time of the submit


@dataclass(frozen=True, slots=True)
class Accepted:
    """An accepted submit.

    ``answer`` is the first answer to a request that is repeated, else None.
    """

    job: Job
    created: bool
    answer: repeated_requests.Answer | None = None
    warnings: list[str] = field(default_factory=list)


def parse_spec(data: Any) -> JobSpec:
    """Read a job from JSON.

    Raises:
        Malformed: ``fields`` holds the messages by field.
    """
    if not isinstance(data, dict):
        raise Malformed('A job is a JSON object, such as {"entrypoint": "train.py", "gpus": 1}.')
    refuse_unwritable(data)
    try:
        return JobSpec.model_validate(data)
    except ValidationError as error:
        raise _malformed(error) from None


def _malformed(error: ValidationError) -> Malformed:
    fields: dict[str, list[str]] = {}
    for problem in error.errors(include_url=False):
        name, message = str(problem["loc"][0]) if problem["loc"] else "", problem_text(problem)
        if problem["type"] == "extra_forbidden":
            name, message = (
                name[:80],
                Sentence("unknown field; known are {known}", known=", ".join(JobSpec.model_fields)),
            )
        elif not name and ": " in message:  # a rule over the whole job names its field itself
            name, message = after_field(message)
        elif len(problem["loc"]) > 1:
            message = Sentence(
                "{problem}: {message}",
                problem=".".join(str(part)[:80] for part in problem["loc"][1:]),
                message=message,
            )
        fields.setdefault(name or "job", []).append(message)
    first, messages = next(iter(fields.items()))
    return Malformed(
        Sentence("The job cannot be read: {first}: {messages}", first=first, messages=messages[0]),
        fields=fields,
    )


def accept(
    user: AbstractBaseUser,
    spec: JobSpec,
    *,
    render: Callable[[Job, list[str]], repeated_requests.Answer] | None = None,
    script: Upload | None = None,
    bundle: Upload | None = None,
    uploaded: str | None = None,
    idempotency_key: str | None = None,
    endpoint: str = "jobs",
    beside: Callable[[Job], object] | None = None,
    continues: bool = False,
) -> Accepted:
    """Accept a job; when this returns, the job is stored.

    Args:
        render: makes the answer that a repeated request with the same key gets again.
        uploaded: SHA-256 of a bundle that this person is known to have uploaded; another bundle has to belong
            to a job that they may see.
        beside: writes further rows in the transaction that creates the job; an error there undoes both.
        continues: the job belongs to a sweep or service that was accepted before.

    Raises:
        Malformed, TooLarge: the files or fields cannot be read.
        Impossible: well-formed, but can never run here.
        Forbidden: beyond what this person may ask for.
    """
    if not continues:
        checks.check_own(spec)
    # A repeated request gets the same answer, even if pools or datasets have changed since.
    request = repeated_requests.Request(user, endpoint, idempotency_key) if idempotency_key else None
    known = request is not None and request.is_known()
    resolved = spec if known else checks.resolve(user, spec, continues=continues)
    if spec.source is not None and spec.source.bundle not in (None, uploaded):
        checks.check_bundle(user, spec.source.bundle)
    is_fetched = code.is_fetched(spec, script, bundle)
    given, sha256, warnings = spec.model_fields_set, "", list[str]()
    if is_fetched:
        wanted = Wanted(spec)  # its packages are known once its code is there
    else:
        spec, stored, warnings = code.store_code(spec, script, bundle)
        sha256 = stored.sha256
        wanted = _packages(user, spec, sha256, replayed=known)
    fingerprint = _fingerprint(spec, sha256)  # of what was asked for, not of what it stands for now
    spec = wanted.spec.model_copy(update={name: getattr(resolved, name) for name in RESOLVED})
    spec = spec if known else session_limits.fill(spec)
    warnings = [*warnings, *starts.temporary_warning(spec), *wanted.notes]
    # Build the row outside the write lock. A replayed request skips this: it creates no job, and its spec may no
    # longer resolve.
    columns = {} if known else rows.columns_of(user, spec, sha256)

    @again_when_undone
    def write() -> Accepted:
        with _one_writer(), transaction.atomic():
            if request and (kept := _accepted_before(request, fingerprint)):
                return kept
            quotas.one_submit_at_a_time(user)
            quotas.check_submit(user, spec, len(spec.array.members) if spec.array else 1)
            if spec.is_session:
                session_limits.check_count(user, Pool.objects.get(pk=spec.pool))
            agents.check_submit(user, spec)
            agents.check_planned(user, spec)
            files = {
                "environment": rows.environment_row(wanted.declared),
                "checkout": code.checkout_of(user.pk, spec, given) if is_fetched else None,
            }
            job = rows.create(user, spec, (columns or rows.columns_of(user, spec, sha256)) | files)
            if beside:
                beside(job)
            if request:
                answer = render(job, warnings) if render else {"id": str(job.pk)}
                request.keep(fingerprint, answer, job.submitted_at)
        return Accepted(job, created=True, warnings=warnings)

    try:
        return write()
    except IntegrityError:
        # PostgreSQL lets two requests with one key come this far; the later one waits for the earlier here.
        if request and (kept := _accepted_before(request, fingerprint)):
            return kept
        raise


def _fingerprint(spec: JobSpec, bundle: str) -> str:
    fields = spec.model_dump(mode="json", exclude={"source"})
    source = spec.source.model_dump() if spec.source and spec.source.git else None
    named = [fields, bundle, *([source] if source else [])]
    return hashlib.sha256(orjson.dumps(named, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _accepted_before(request: repeated_requests.Request, fingerprint: str) -> Accepted | None:
    answer = request.answer(fingerprint)
    if answer is None:
        return None
    return Accepted(Job.objects.get(pk=answer["id"]), created=False, answer=answer)


@contextmanager
def _one_writer() -> Iterator[None]:
    """Wait for the turn to write: SQLite has one writer at a time, and does not serve waiting ones in order."""
    if connection.vendor != "sqlite":
        yield
        return
    if not _turn.acquire(timeout=LONGEST_TURN_S):
        raise OperationalError("database is locked")
    try:
        yield
    finally:
        _turn.release()


def draft(user: AbstractBaseUser, spec: JobSpec) -> Job:
    """Build the unsaved Job for this spec (an array's first member). Saves nothing; needs no code.

    Raises:
        Impossible, Forbidden, TooMany: as ``accept``.
    """
    resolved = checks.resolve(user, spec)
    quotas.check_submit(user, resolved, len(spec.array.members) if spec.array else 1)
    agents.check_submit(user, resolved)
    bundle = ""  # unknown code: nothing was learned from its earlier runs
    if spec.source is not None and spec.source.bundle is not None:
        checks.check_bundle(user, spec.source.bundle)
        bundle = spec.source.bundle
    elif spec.source is not None and spec.source.text is not None:
        bundle = bundles.script_hash(spec.script_name, spec.source.text.encode(errors="surrogatepass"))
    now = timezone.now()
    job = Job(**rows.columns_of(user, resolved, bundle), submitted_at=now, queued_at=now)
    job.owner = cast(User, user)
    return job


def _packages(user: AbstractBaseUser, spec: JobSpec, bundle: str, *, replayed: bool) -> Wanted:
    """The packages that a submit asks for; a replayed request creates no job, and may no longer resolve."""
    try:
        return requests.of_submit(user, spec, bundle)
    except OrchestratorError:
        if not replayed:
            raise
        return Wanted(spec)
