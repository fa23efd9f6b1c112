"""Programs that act for a person by a token of their own: what they may use, and how what they do is marked.

The gate puts the token's rules on the user object, as ``agent``; a person's own credentials lack it.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, TypedDict

import orjson
from django.contrib.auth.models import AbstractBaseUser
from django.utils import timezone

from orchestrator.exceptions import Conflict, Forbidden, Impossible, Sentence
from orchestrator.models import FINAL_STATES, AgentRules, Job
from orchestrator.spec.job_spec import JobSpec

HOUR_S = 3600.0
PLAN_LASTS_S = 3600.0
MOST_PLANS = 50  # remembered of a token
# What an agent's token may change; everything else needs a person's own.
_ACTS = "cancel|hold|release|preempt|checkpoint|move|retry"
_MAY_CHANGE = re.compile(rf"POST /(plan|jobs(/[^/]+/({_ACTS}))?)|PATCH /jobs/[^/]+")
# What a plan is about: another script or argument needs no new one.
_PLANNED = (
    "pool",
    "gpus",
    "min_gpus",
    "max_gpus",
    "gpu_memory_gib",
    "gpu_memory_limit_gib",
    "cpus",
    "memory_gib",
    "time_limit_s",
    "array",
)


def agent_of(user: AbstractBaseUser) -> AgentRules | None:
    """The rules of the token that this request came with; None where a person acts."""
    rules: AgentRules | None = getattr(user, "agent", None)
    return rules


def name_of(user: AbstractBaseUser) -> str:
    """Who acted, for histories: ada, or ada (agent claude)."""
    rules = agent_of(user)
    name = user.get_username()
    return name if rules is None else f"{name} (agent {rules.token.name})"[:160]


class AgentMark(TypedDict, total=False):
    """The mark of a job that an agent submitted; empty for a person's."""

    token: int
    name: str
    width: int | None


def mark_of(user: AbstractBaseUser) -> AgentMark:
    """The mark of a job that this user submits, as its row keeps it; empty for a person's."""
    rules = agent_of(user)
    return {} if rules is None else {"token": rules.token_id, "name": rules.token.name, "width": rules.width}


def check_route(method: str, path: str) -> None:
    """Refuse what agents may not change: people, tokens, secrets, devices, pools and files.

    Args:
        path: below the API's prefix, such as ``/jobs``.

    Raises:
        Forbidden: it needs a person's own token.
    """
    if method not in {"GET", "HEAD"} and not _MAY_CHANGE.fullmatch(f"{method} {path.rstrip('/')}"):
        raise Forbidden(
            "An agent's token may look, plan, submit and steer jobs. This needs a person's own token."
        )


def check_change(user: AbstractBaseUser, changes: Mapping[str, Any]) -> None:
    """Refuse changes of a job that would go around the budget, or show it to others.

    Raises:
        Forbidden: they change its priority, its time limit or who sees it.
    """
    if agent_of(user) is not None and (shown := sorted({"project", "visibility"} & set(changes))):
        sentence = Sentence(
            "An agent's token cannot change {shown}; a person decides who sees a job.", shown=shown[0]
        )
        raise Forbidden(sentence, fields={name: [sentence] for name in shown})
    if agent_of(user) is not None and (refused := sorted({"priority", "time_limit_s"} & set(changes))):
        sentence = Sentence(
            "An agent's token cannot change {refused}; its budget was checked at the submit.",
            refused=refused[0],
        )
        raise Forbidden(sentence, fields={name: [sentence] for name in refused})


def check_clone(user: AbstractBaseUser, job: Job) -> None:
    """Refuse clones of other people's jobs: they would be theirs, outside the agent's budget.

    Raises:
        Forbidden: the job is not of the agent's person.
    """
    if agent_of(user) is not None and job.owner_id != user.pk:
        raise Forbidden("An agent's token runs only its own person's jobs again.")


def check_submit(user: AbstractBaseUser, spec: JobSpec) -> None:
    """Check that jobs like this fit into the budget of the agent's token; a person's always do.

    Raises:
        Impossible: the token does not allow them.
    """
    rules = agent_of(user)
    if rules is None or spec.gpus == 0:
        return
    if spec.gpus > rules.width:
        raise _impossible(
            "gpus",
            Sentence(
                "This token may use {width} devices at once; the job asks for {gpus}.",
                width=rules.width,
                gpus=spec.gpus,
            ),
        )
    if rules.device_hours is None:
        return
    if spec.time_limit_s is None:
        raise _impossible(
            "time_limit_s", "An agent's job needs time_limit_s: its device-hours are counted by it."
        )
    most = min(spec.max_gpus or spec.gpus, rules.width)
    asked_s = most * spec.time_limit_s * (len(spec.array.members) if spec.array else 1)
    left_s = rules.device_hours * HOUR_S - taken_s(rules)
    if asked_s > left_s:
        raise _impossible(
            "time_limit_s",
            Sentence(
                "This token has {left_h:.2f} of {device_hours:g} device-hours remaining; the submit asks for up to {asked_h:.2f}. Ask for less, or ask your person for a new token.",
                left_h=max(0.0, left_s) / HOUR_S,
                device_hours=rules.device_hours,
                asked_h=asked_s / HOUR_S,
            ),
        )


def taken_s(rules: AgentRules) -> float:
    """Device-seconds of the token's jobs: used by ended ones, granted to the others."""
    rows = Job.objects.filter(owner=rules.token.user_id, agent__token=rules.token_id).exclude(
        spec_fields__gpus=0
    )
    taken = 0.0
    columns = ("state", "attained_gpu_s", "gpus", "spec_fields__max_gpus", "time_limit_s")
    for state, used, gpus, most, limit in rows.values_list(*columns):
        granted = min(most, rules.width) if most else gpus
        taken += used if state in FINAL_STATES else max(used, granted * (limit or 0.0))
    return taken


def remember_plan(user: AbstractBaseUser, spec: JobSpec) -> None:
    """Note that the agent saw when and where jobs like this would run."""
    rules = agent_of(user)
    if rules is None or not rules.plan_first:
        return
    now_s = timezone.now().timestamp()
    fresh = {plan: at for plan, at in rules.planned.items() if now_s - at < PLAN_LASTS_S}
    fresh[_plan_of(spec)] = now_s
    rules.planned = dict(sorted(fresh.items(), key=lambda each: -each[1])[:MOST_PLANS])
    rules.save(update_fields=["planned"])


def check_planned(user: AbstractBaseUser, spec: JobSpec) -> None:
    """Check that the agent planned jobs like this within the last hour, if its token asks for that.

    Raises:
        Conflict: it did not.
    """
    rules = agent_of(user)
    if rules is None or not rules.plan_first:
        return
    at = rules.planned.get(_plan_of(spec))
    if at is None or timezone.now().timestamp() - at >= PLAN_LASTS_S:
        raise Conflict(
            "This token submits only what it planned within the last hour. Call POST /plan with the same devices, "
            "memory, time limit, pool and array, look at its answer, then submit."
        )


def _plan_of(spec: JobSpec) -> str:
    asked = spec.model_dump(mode="json", include=set(_PLANNED))
    return hashlib.sha256(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _impossible(name: str, sentence: str) -> Impossible:
    return Impossible(sentence, fields={name: [sentence]})
