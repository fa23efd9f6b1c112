"""Updates of accepted jobs: labels at any time; priority, limit and checkpoints until the job has ended."""

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction

from orchestrator.exceptions import Conflict, Malformed, Sentence
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.submission import checks, rows
from orchestrator.jobs.submission.intake import parse_spec
from orchestrator.live import wakeups
from orchestrator.models import Errand, Job, Visibility
from orchestrator.models.transactions import again_when_undone
from orchestrator.people import accounts, agents, rights
from orchestrator.sentences.events import ended_as

CHANGEABLE = frozenset(
    {"name", "tags", "project", "visibility", "priority", "time_limit_s", "checkpoint_glob"}
)
CHANGEABLE_WHEN_ENDED = frozenset({"name", "tags", "project", "visibility"})
SHOWN = frozenset({"project", "visibility"})  # who sees it
NO_COLUMNS = frozenset({"checkpoint_glob"})  # in spec_fields alone


@again_when_undone
def update(user: AbstractBaseUser, job: Job, changes: Mapping[str, Any]) -> Job:
    """Change fields that the table of fields marks as changeable.

    Raises:
        Malformed: another field, or a wrong value.
        Conflict: the job has ended, and only its name, tags and who sees it can change.
    """
    if refused := sorted(set(changes) - CHANGEABLE):
        raise Malformed(
            Sentence(
                "{refused!r} cannot be changed; these can: {changeable}.",
                refused=refused[0][:80],
                changeable=", ".join(sorted(CHANGEABLE)),
            ),
            fields={name[:80]: ["cannot be changed"] for name in refused},
        )
    rights.check_steer(user, job)
    agents.check_change(user, changes)
    with transaction.atomic():
        # The row as it is now, locked: two changes at once must not undo each other.
        job = Job.objects.select_for_update().get(pk=job.pk)
        if job.is_final and set(changes) - CHANGEABLE_WHEN_ENDED:
            raise Conflict(
                Sentence(
                    "The job has {ended_as}; only its name, tags, project and visibility can still change.",
                    ended_as=ended_as(job.state),
                )
            )
        if changes.get("project", "") is None and job.spec_fields.get("visibility") == Visibility.PROJECT:
            changes = {"visibility": None, **changes}  # no project is left whose members could see it
        spec = parse_spec({**job.spec_fields, **changes})
        if "priority" in changes:
            rights.check_priority(user, job.pool_id, spec.priority)
        values: Mapping[str, Any] = {name: getattr(spec, name) for name in changes}
        columns = {name: values[name] for name in values.keys() - NO_COLUMNS}
        if SHOWN & changes.keys():
            checks.check_shown(job.owner, spec, changes)
            columns["visibility"] = checks.visibility_of(spec, job.pool)
        if columns.get("name", "") is None:
            raise Malformed("A job needs a name.", fields={"name": ["give a name"]})
        kept = spec.model_dump(mode="json", exclude=set(rows.NOT_KEPT))
        Job.objects.filter(pk=job.pk).update(spec_fields=kept, **columns)
        changed = {name: kept[name] for name in values}
        lifecycle.remark(job, fact(Happened.CHANGED, changes=changed), actor=agents.name_of(user))
        if not job.is_final:
            lifecycle.queue_errand(job, Errand.SCHEDULE)
    if SHOWN & changes.keys():
        wakeups.publish(accounts.TOPIC)  # who watches it may no longer see it
    job.refresh_from_db()
    return job
