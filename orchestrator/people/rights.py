"""Decide what a person may do; everything not allowed here is forbidden.

| role | may |
|---|---|
| viewer | read: the devices, the queue, their own earlier jobs |
| submitter | also submit to open pools and to pools they have a right in; steer their own jobs |
| operator | also see and steer every job, operate every pool and device, use higher priorities; retry a job for its owner |
| admin | everything: people, quotas, pools, roots of datasets, the audit |

A right in one pool makes a submitter its operator, or lets them submit to it if it is closed. Staff are
admins; people without a role are submitters.
"""

from collections.abc import Callable, Collection, Mapping

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

from orchestrator.exceptions import Forbidden, Sentence
from orchestrator.models import Job, Person, Pool, PoolRight, Right, Role, Scope, Sweep
from orchestrator.models.people import operated_pools
from orchestrator.spec.job_spec import JobFields
from orchestrator.spec.remote_data import looks_remote, without_queries, without_query

# What a job does, as opposed to where, when and with how much of the machine.
WHAT_RUNS = frozenset(
    [
        "kind",
        "entrypoint",
        "module",
        "command",
        "program",
        "git",
        "workdir",
        "args",
        "resume_args",
        "env",
        "secrets",
        "datasets",
        "python",
        "environment",
        "with_packages",
        "image",
        "launcher",
        "checkpoint_glob",
    ]
)
_WITH_ADDRESSES = ("datasets", "args", "resume_args", "command")
Someone = AbstractBaseUser | AnonymousUser
HIGHEST_PRIORITY: Mapping[Role, int] = {
    Role.VIEWER: 0,
    Role.SUBMITTER: 60,
    Role.OPERATOR: 80,
    Role.ADMIN: 100,
}


def role_of(user: Someone) -> Role:
    """The role that a person has in every pool."""
    if getattr(user, "is_staff", False):
        return Role.ADMIN
    person = Person.objects.filter(user_id=user.pk or 0).values_list("role", flat=True).first()
    return Role(person) if person else Role.SUBMITTER


def right_in(user: Someone, pool_id: str) -> Role:
    """The role that a person has in one pool."""
    role = role_of(user)
    if role != Role.SUBMITTER:
        return role
    operates = PoolRight.objects.filter(user_id=user.pk or 0, pool=pool_id, right=Right.OPERATE).exists()
    return Role.OPERATOR if operates else role


def administers(user: Someone) -> bool:
    """Whether a person operates any pool; only then may their tokens have the scope admin."""
    role = role_of(user)
    if role == Role.SUBMITTER:
        return PoolRight.objects.filter(user_id=user.pk or 0, right=Right.OPERATE).exists()
    return role != Role.VIEWER


def widest_scope(user: Someone) -> str:
    """The widest scope that credentials of this person may have."""
    if administers(user):
        return Scope.ADMIN
    return Scope.READ if role_of(user) == Role.VIEWER else Scope.WRITE


def may_submit(user: Someone, pool: Pool) -> bool:
    """Whether ``check_submit`` lets a person submit to a pool."""
    try:
        check_submit(user, pool)
    except Forbidden:
        return False
    return True


def check_submit(user: Someone, pool: Pool) -> None:
    """Check that a person may submit to a pool.

    Raises:
        Forbidden: the person is a viewer, or the pool is closed to them.
    """
    role = right_in(user, pool.name)
    if role == Role.VIEWER:
        raise Forbidden(why_read_only(user))
    if pool.open or role != Role.SUBMITTER:
        return
    if not PoolRight.objects.filter(user_id=user.pk or 0, pool=pool).exists():
        sentence = Sentence(
            "Pool {pool} is closed to you. Ask one of its operators for the right to submit.", pool=pool.name
        )
        raise Forbidden(sentence, fields={"pool": [sentence]})


def waits(user: Someone) -> bool:
    """Whether a newcomer is not approved yet."""
    return Person.objects.filter(user_id=user.pk or 0, waits=True).exists()


def is_service(user: Someone) -> bool:
    """Whether the account is a program's, which signs in nowhere."""
    return Person.objects.filter(user_id=user.pk or 0, service=True).exists()


def why_read_only(user: Someone) -> str:
    """Say to a viewer why they change nothing."""
    if waits(user):
        return "Your account is new. An operator has to approve it before you can run anything."
    return "Your role is viewer, which is read-only. Ask an admin for the role submitter."


def check_priority(user: Someone, pool_id: str, priority: int) -> None:
    """Check that a person may use a priority in a pool.

    Raises:
        Forbidden: the priority needs a higher role.
    """
    highest = HIGHEST_PRIORITY[right_in(user, pool_id)]
    if priority > highest:
        raise Forbidden(
            Sentence(
                "Priority {priority} needs a higher role. You may use 0 to {highest}.",
                priority=priority,
                highest=highest,
            ),
            fields={"priority": [Sentence("you may use 0 to {highest}", highest=highest)]},
        )


def may_steer(user: Someone, job: Job | Sweep) -> bool:
    """Whether a person who may see a job or a sweep may also steer it: its owner, and operators of its pool."""
    role = right_in(user, job.pool_id)
    return role != Role.VIEWER and (role != Role.SUBMITTER or job.owner_id == user.pk)


def steered_by(user: Someone) -> Callable[[Job], bool]:
    """``may_steer`` for the jobs of a list: asks the database once, not once for each job."""
    if role_of(user) == Role.VIEWER:
        return lambda job: False
    pools = operated_pools(user)
    return lambda job: pools is None or job.owner_id == user.pk or job.pool_id in pools


def environment_of(job: Job, user_id: int | None, hidden: str | None = None) -> dict[str, str | None]:
    """A job's environment as one person may see it: everybody sees the names, only the owner the values."""
    values: dict[str, str | None] = job.spec_fields.get("env") or {}
    return values if user_id is not None and user_id == job.owner_id else dict.fromkeys(values, hidden)


def texts_of(job: Job, user_id: int | None) -> dict[str, list[str]]:
    """The fields of a job that may hold addresses, as one person may see them.

    The query of an address may be a password, which is its owner's.
    """
    fields: dict[str, list[str]] = {name: job.spec_fields.get(name) or [] for name in _WITH_ADDRESSES}
    if user_id is not None and user_id == job.owner_id:
        return fields
    data = [without_query(each) if looks_remote(each) else each for each in fields["datasets"]]
    return {name: list(map(without_queries, named)) for name, named in fields.items()} | {"datasets": data}


def fields_of(job: Job, user_id: int | None) -> JobFields:
    """A job's submitted fields with the texts that one person may see; for its variables see ``environment_of``."""
    return {**job.spec_fields, **texts_of(job, user_id)}


def check_retry(user: Someone, job: Job, changes: Collection[str]) -> None:
    """Check that a person may retry a job with changes in these fields.

    A retry of somebody else's job runs with its owner's environment and secrets. Only the owner may change what
    runs, because other code could reveal them.

    Raises:
        Forbidden: not theirs to steer, the change is the owner's, or the owner's account is disabled.
    """
    check_steer(user, job)
    if job.owner_id == user.pk:
        return
    if refused := sorted(WHAT_RUNS & set(changes)):
        sentence = "only the job's owner may change what runs; submit a job of your own instead"
        raise Forbidden(
            Sentence("{refused}: {sentence}.", refused=refused[0], sentence=sentence),
            fields={name: [sentence] for name in refused},
        )
    if not job.owner.is_active:
        raise Forbidden(
            Sentence(
                "The account of {owner} is disabled. Submit the code as a job of your own.", owner=job.owner
            )
        )


def check_steer(user: Someone, job: Job) -> None:
    """Check that a person may steer a job.

    Raises:
        Forbidden: they may only look at it.
    """
    if not may_steer(user, job):
        raise Forbidden("You may look at this job, but not change it. Ask an operator of its pool.")


def check_operate(user: Someone, pool_id: str) -> None:
    """Check that a person operates a pool.

    Raises:
        Forbidden: they do not.
    """
    if right_in(user, pool_id) not in {Role.OPERATOR, Role.ADMIN}:
        raise Forbidden(
            Sentence(
                "Only operators of pool {pool_id} may do this. Ask the person who runs this server.",
                pool_id=pool_id,
            )
        )


def hosts(user: Someone) -> bool:
    """Whether a person runs this server for others: operators of every pool, and admins."""
    return role_of(user) in {Role.OPERATOR, Role.ADMIN}


def check_host(user: Someone) -> None:
    """Check that a person may see everybody's account, invite people and approve newcomers.

    Raises:
        Forbidden: they may not.
    """
    if not hosts(user):
        raise Forbidden("Only operators of every pool may do this. Ask the person who runs this server.")


def check_give(user: Someone, role: Role, pools: Mapping[str, str]) -> None:
    """Check that a person may make somebody else this, with these rights in pools.

    Raises:
        Forbidden: it is more than they may give.
    """
    check_host(user)
    if role_of(user) == Role.ADMIN:
        return
    if role in {Role.OPERATOR, Role.ADMIN}:
        sentence = Sentence(
            "Only admins may make somebody {role}. You may choose viewer or submitter.", role=role
        )
        raise Forbidden(sentence, fields={"role": [sentence]})
    if Right.OPERATE in pools.values():
        closed = "Only admins may let somebody operate a pool. You may give the right to submit."
        raise Forbidden(closed, fields={"pools": [closed]})


def check_admin(user: Someone) -> None:
    """Check that a person is an admin.

    Raises:
        Forbidden: they are not.
    """
    if role_of(user) != Role.ADMIN:
        raise Forbidden("Only admins may do this. Ask the person who runs this server.")
