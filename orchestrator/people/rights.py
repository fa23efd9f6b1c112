"""May this person do that?  The one place that answers; what it does not allow is forbidden.

| role | may |
|---|---|
| viewer | look: the devices, the queue, their own jobs of earlier days |
| submitter | also submit to open pools and those they have a right in; steer their own jobs |
| operator | also see and steer every job, operate every pool and device, use higher priorities; retry a job for its owner |
| admin | everything: people, quotas, pools, roots of datasets, the audit |

A right in one pool makes a submitter its operator, or lets them submit to it where it is closed.  Whoever is staff is an admin;
who has no role is a submitter.
"""

from collections.abc import Collection, Mapping

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

from orchestrator.exceptions import Forbidden
from orchestrator.models import Job, Person, Pool, PoolRight, Right, Role, Scope

# What a job does, as opposed to where, when and with how much of the machine.
WHAT_RUNS = frozenset(
    [
        *("kind", "entrypoint", "args", "resume_args", "env", "secrets", "datasets"),
        *("python", "launcher", "checkpoint_glob"),
    ]
)
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
    """Whether there is anything that they operate: only then a token of theirs may have the scope admin."""
    role = role_of(user)
    if role == Role.SUBMITTER:
        return PoolRight.objects.filter(user_id=user.pk or 0, right=Right.OPERATE).exists()
    return role != Role.VIEWER


def widest_scope(user: Someone) -> str:
    """What any credentials of this person allow at most."""
    if administers(user):
        return Scope.ADMIN
    return Scope.READ if role_of(user) == Role.VIEWER else Scope.WRITE


def check_submit(user: Someone, pool: Pool) -> None:
    """
    Raises:
        Forbidden: viewers submit nothing; a closed pool takes jobs of those with a right in it.
    """
    role = right_in(user, pool.name)
    if role == Role.VIEWER:
        raise Forbidden("Your role is viewer, which looks only; ask an admin for the role submitter.")
    if pool.open or role != Role.SUBMITTER:
        return
    if not PoolRight.objects.filter(user_id=user.pk or 0, pool=pool).exists():
        sentence = f"Pool {pool.name} is closed to you; ask an operator of it for the right to submit."
        raise Forbidden(sentence, fields={"pool": [sentence]})


def check_priority(user: Someone, pool_id: str, priority: int) -> None:
    """
    Raises:
        Forbidden: the priority is for a higher role (B32).
    """
    highest = HIGHEST_PRIORITY[right_in(user, pool_id)]
    if priority > highest:
        raise Forbidden(
            f"Priority {priority} is for a higher role; you may use 0 to {highest}.",
            fields={"priority": [f"you may use 0 to {highest}"]},
        )


def may_steer(user: Someone, job: Job) -> bool:
    """Whether somebody who sees a job may act on it."""
    role = right_in(user, job.pool_id)
    return role != Role.VIEWER and (role != Role.SUBMITTER or job.owner_id == user.pk)


def environment_of(job: Job, user_id: int | None, hidden: str | None = None) -> dict[str, str | None]:
    """A job's environment as one person may see it: the values are the owner's alone, the names everybody's."""
    values: dict[str, str | None] = job.spec_fields.get("env") or {}
    return values if user_id is not None and user_id == job.owner_id else dict.fromkeys(values, hidden)


def check_retry(user: Someone, job: Job, changes: Collection[str]) -> None:
    """Whether this person may run a job once more, with changes in these fields.

    Another's job is run for its owner, with the environment and secrets of that owner. Whoever could choose
    what runs could make it show them, so only the owner may.

    Raises:
        Forbidden
    """
    check_steer(user, job)
    if job.owner_id == user.pk:
        return
    if refused := sorted(WHAT_RUNS & set(changes)):
        sentence = "only the job's owner may change what runs; submit a job of your own instead"
        raise Forbidden(f"{refused[0]}: {sentence}.", fields={name: [sentence] for name in refused})
    if not job.owner.is_active:
        raise Forbidden(f"The account of {job.owner} is not active; submit the code as a job of your own.")


def check_steer(user: Someone, job: Job) -> None:
    """
    Raises:
        Forbidden: they may look only.
    """
    if not may_steer(user, job):
        raise Forbidden("You may look at this job, but not change it; ask an operator of its pool.")


def check_operate(user: Someone, pool_id: str) -> None:
    """
    Raises:
        Forbidden: for operators of the pool.
    """
    if right_in(user, pool_id) not in {Role.OPERATOR, Role.ADMIN}:
        raise Forbidden(f"Only operators of pool {pool_id} may do this; ask the person who runs this server.")


def check_admin(user: Someone) -> None:
    """
    Raises:
        Forbidden: for admins.
    """
    if role_of(user) != Role.ADMIN:
        raise Forbidden("Only admins may do this; ask the person who runs this server.")
