"""Creates and changes sweeps: reads what a person asks for, and checks all of it before the first trial."""

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from django.contrib.auth.models import AbstractBaseUser
from django.db import IntegrityError, transaction
from django.db.models import Sum
from django.utils import timezone

from orchestrator.exceptions import Conflict, Forbidden, Impossible, Malformed, Sentence
from orchestrator.facts.events import SweepFact
from orchestrator.jobs.environments import requests
from orchestrator.jobs.submission import checks, intake
from orchestrator.jobs.submission.code import Upload, store_code
from orchestrator.jobs.submission.repeated_requests import Answer, Request
from orchestrator.live import wakeups
from orchestrator.models import SETTINGS_VARIABLE, Sweep, SweepState
from orchestrator.people import rights
from orchestrator.spec.field_types import why_not_a_variable
from orchestrator.spec.job_spec import JobSpec
from orchestrator.sweeps.asking import GainRule, SweepChanges, SweepSpec, validated
from orchestrator.sweeps.core.flags import read_flags
from orchestrator.sweeps.core.reading import read_space
from orchestrator.sweeps.core.ready import flags_of
from orchestrator.sweeps.core.space import MOST_GRID_POINTS, Space, WrongSpace
from orchestrator.sweeps.ending import change as change_columns
from orchestrator.sweeps.handing_over import LONGEST_NAME, example, fill, placeholders, variable_of
from orchestrator.sweeps.learning import choose_earlier

# Of the cube that is searched, with one for each choice. SciPy makes Sobol points of at most 21,201 columns.
MOST_COLUMNS = 10_000
PART_BYTES = 1024**2  # of an upload, while it is hashed
# Of a job's fields, those that make no sense for many jobs of one sweep.
NOT_FOR_TRIALS = ("array", "name")


@dataclass(frozen=True, slots=True)
class Created:
    """A sweep with what its person should read; ``answer`` is that of an earlier request with the same key."""

    sweep: Sweep
    warnings: list[str] = field(default_factory=list)
    answer: Answer | None = None


def create(
    user: AbstractBaseUser,
    spec: SweepSpec,
    *,
    script: Upload | None = None,
    bundle: Upload | None = None,
    uploaded: str | None = None,
    idempotency_key: str | None = None,
    render: Callable[[Sweep, list[str]], Answer] | None = None,
) -> Created:
    """Create a sweep; a worker begins its trials at once.

    Args:
        uploaded: SHA-256 of a bundle that this person is known to have uploaded.
        render: makes the answer that a repeated request with the same key gets again.

    Raises:
        Malformed, TooLarge: the space, the job or its code cannot be read.
        Impossible, Forbidden, TooMany: no trial could ever run, or not by this person.
    """
    request = Request(user, "sweeps", idempotency_key) if idempotency_key else None
    fingerprint = _fingerprint(spec, script, bundle) if request else ""
    if request and (earlier := _created_before(request, fingerprint)):
        return earlier
    space = read_whole_space(spec)
    _check_points(spec, space)
    job, sha256, warnings = _checked_job(user, spec, space, script, bundle, uploaded)
    sweep = _row(user, spec, space, job, sha256)
    warnings += choose_earlier(user, spec.warm_start, space, sweep)
    if sweep.further and spec.early_stopping:
        warnings.append(SEVERAL_METRICS)
    try:
        with transaction.atomic():
            sweep.save(force_insert=True)
            if request:
                answer = render(sweep, warnings) if render else {"id": str(sweep.pk)}
                request.keep(fingerprint, answer, sweep.created_at)
    except IntegrityError:  # another request with this key was first
        if request and (earlier := _created_before(request, fingerprint)):
            return earlier
        raise
    wakeups.advance(sweep.pk)
    return Created(sweep, warnings)


def _fingerprint(spec: SweepSpec, *files: Upload | None) -> str:
    """Of what was asked for, so that a repeated request is answered even if it could no longer be carried out."""
    digest = hashlib.sha256(orjson.dumps(spec.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS))
    for upload in files:
        digest.update(b"\0")
        if upload is not None:
            while part := upload.read(PART_BYTES):
                digest.update(part)
            upload.seek(0)
    return digest.hexdigest()


def _created_before(request: Request, fingerprint: str) -> Created | None:
    answer = request.answer(fingerprint)
    return None if answer is None else Created(Sweep.objects.get(pk=answer["id"]), answer=answer)


def _row(user: AbstractBaseUser, spec: SweepSpec, space: Space, job: JobSpec, sha256: str) -> Sweep:
    metrics = spec.all_metrics()
    return Sweep(
        owner_id=user.pk,
        pool_id=job.pool,
        name=(spec.name or f"{job.started_as} sweep")[:LONGEST_NAME],
        job_fields=job.model_dump(mode="json", exclude={"source", *NOT_FOR_TRIALS}, exclude_unset=True)
        | {"pool": job.pool, "entrypoint": job.entrypoint},
        bundle=sha256,
        space=space.to_json(),
        metric=metrics[0].name,
        direction=metrics[0].direction,
        further=[metric.model_dump() for metric in metrics[1:]],
        window=spec.window,
        sampler=spec.sampler,
        seed=secrets.randbelow(2**31) if spec.seed is None else spec.seed,
        hand_over=spec.hand_over,
        early_stopping=spec.early_stopping and len(metrics) == 1,
        first_rung=spec.first_rung,
        longest=job.total_steps,
        max_trials=spec.budget.trials,
        max_device_s=None if spec.budget.device_hours is None else spec.budget.device_hours * 3600,
        **_gain_columns(spec.stop_when),
        min_width=spec.min_width,
        max_width=spec.max_width,
        created_at=timezone.now(),
    )


SEVERAL_METRICS = (
    "With several metrics no trial is ahead of all others early on, so each one trains to its end."
)


def _gain_columns(rule: GainRule | None) -> dict[str, float | None]:
    if rule is None:
        return {"least_gain": None, "gain_device_s": None}
    return {"least_gain": rule.gain, "gain_device_s": rule.device_hours * 3600}


def read_whole_space(spec: SweepSpec) -> Space:
    """The space of a sweep from its object and its short form.

    Raises:
        Malformed: with the field ``space``.
    """
    try:
        ready = read_flags(flags_of(spec.ready)) if spec.ready else {}
        short = read_flags(spec.set)
        if twice := sorted(spec.space.keys() & short.keys()):
            raise WrongSpace("", Sentence("{twice} is in space and in set; give it once", twice=twice[0]))
        space = read_space({**ready, **spec.space, **short})
        if space.width > MOST_COLUMNS:
            raise WrongSpace(
                "",
                Sentence(
                    "the settings have {choices:,} choices in all, and {most:,} is the most; write whole numbers as a "
                    "range, such as int:1..1000",
                    choices=space.width,
                    most=MOST_COLUMNS,
                ),
            )
        return space
    except WrongSpace as error:
        raise Malformed(
            Sentence("The space cannot be searched: {error}", error=error), fields={"space": [error.sentence]}
        ) from None


def _check_points(spec: SweepSpec, space: Space) -> None:
    if spec.sampler != "grid" or space.fits_grid(MOST_GRID_POINTS):
        return
    has_conditions = any(setting.when for setting in space.settings)
    points = (
        Sentence("over {points:,}", points=MOST_GRID_POINTS) if has_conditions else f"{space.grid_size():,}"
    )
    sentence = Sentence(
        "the grid has {points} points, and {most_grid_points:,} is the most; use another sampler or fewer choices",
        points=points,
        most_grid_points=MOST_GRID_POINTS,
    )
    raise Impossible(
        Sentence("The space is too large: {sentence}.", sentence=sentence), fields={"sampler": [sentence]}
    )


def _checked_job(
    user: AbstractBaseUser,
    spec: SweepSpec,
    space: Space,
    script: Upload | None,
    bundle: Upload | None,
    uploaded: str | None,
) -> tuple[JobSpec, str, list[str]]:
    """The job of a trial with its stored code, after every check that a submit makes."""
    for name in NOT_FOR_TRIALS:
        if name in spec.job:
            raise Malformed(
                Sentence("job: {name} is not for trials.", name=name),
                fields={"job": [Sentence("leave out {name}", name=name)]},
            )
    _check_handing_over(spec, space)
    job = intake.parse_spec(spec.job)
    # A trial with settings filled in has to be a job; the settings themselves are filled in for each trial.
    intake.parse_spec(fill({**spec.job}, spec.hand_over, space.handed_over(example(space))))
    checks.check_own(job)
    resolved = checks.resolve(user, job)
    if job.source is not None and job.source.bundle not in (None, uploaded):
        checks.check_bundle(user, job.source.bundle)
    job, stored, warnings = store_code(job, script, bundle)
    wanted = requests.of_submit(user, job, stored.sha256)
    return job.model_copy(update={"pool": resolved.pool}), stored.sha256, [*warnings, *wanted.notes]


def _check_handing_over(spec: SweepSpec, space: Space) -> None:
    words = [word for name in ("args", "command") for word in _texts(spec.job.get(name))]
    named = placeholders(words)
    variables = {SETTINGS_VARIABLE: SETTINGS_VARIABLE}
    for setting in space.settings:
        if setting.name in named and setting.when is not None:
            sentence = Sentence(
                "{{{setting}}} stands in args, but {setting} exists only for some trials; leave the word out",
                setting=setting.name,
            )
            raise Malformed(Sentence("job: {sentence}.", sentence=sentence), fields={"job": [sentence]})
        if spec.hand_over == "env" and (problem := why_not_a_variable(variable_of(setting.name))):
            raise Malformed(Sentence("space: {problem}.", problem=problem), fields={"space": [problem]})
        if spec.hand_over == "env" and setting.name not in named:
            other = variables.setdefault(variable_of(setting.name), setting.name)
            if other != setting.name:
                sentence = Sentence(
                    "{setting} and {other} would both be the variable {variable}; rename one of them",
                    setting=setting.name,
                    other=other,
                    variable=variable_of(setting.name),
                )
                raise Malformed(Sentence("space: {problem}.", problem=sentence), fields={"space": [sentence]})


def _texts(value: Any) -> Sequence[str]:
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []


def check_steer(user: AbstractBaseUser, sweep: Sweep) -> None:
    """Check that a person who may see a sweep may also change it: its owner, or an operator of its pool.

    Raises:
        Forbidden: they may only look at it.
    """
    role = rights.right_in(user, sweep.pool_id)
    if role == "viewer" or (role == "submitter" and sweep.owner_id != user.pk):
        raise Forbidden("You may look at this sweep, but not change it. Ask an operator of its pool.")


def update(user: AbstractBaseUser, sweep: Sweep, data: Mapping[str, Any]) -> None:
    """Change name, budget or width; a larger budget continues a sweep that ended by it.

    Raises:
        Malformed: another field, or a wrong value.
        Conflict: the sweep has failed or was stopped.
    """
    check_steer(user, sweep)
    changes = validated(SweepChanges, data, "change")
    given = {name: getattr(changes, name) for name in changes.model_fields_set}
    if empty := sorted(name for name in NEVER_EMPTY & given.keys() if given[name] is None):
        raise Malformed(
            Sentence("{name} cannot be empty; give a value, or leave it out.", name=empty[0]),
            fields={name: ["cannot be empty"] for name in empty},
        )
    if given.keys() - {"name"} and sweep.state in {SweepState.STOPPED, SweepState.FAILED}:
        raise Conflict(Sentence("The sweep has {state}; begin another one.", state=sweep.state))
    columns = {_COLUMNS[name]: value for name, value in given.items() if name in _COLUMNS}
    if "name" in columns:
        columns["name"] = columns["name"][:LONGEST_NAME]
    if "stop_when" in given:
        if given["stop_when"] is not None and sweep.further:
            raise Malformed("stop_when is for one metric.", fields={"stop_when": ["is for one metric"]})
        columns |= _gain_columns(changes.stop_when)
    if "max_device_s" in columns and columns["max_device_s"] is not None:
        columns["max_device_s"] *= 3600
    after = {
        name: columns.get(name, getattr(sweep, name))
        for name in ("min_width", "max_width", "max_trials", "max_device_s")
    }
    if after["min_width"] > after["max_width"]:
        raise Malformed("min_width is at most max_width.", fields={"min_width": ["is more than max_width"]})
    if after["max_trials"] is None and after["max_device_s"] is None:
        raise Malformed("A sweep has a budget.", fields={"trials": ["give trials or device_hours"]})
    if sweep.state == SweepState.ENDED and given.keys() & CONTINUE and _has_more_budget(sweep, after):
        columns |= {"state": SweepState.RUNNING, "why": {}, "ended_at": None}
        if "stop_when" not in given and sweep.why.get("code") == SweepFact.LITTLE_TO_GAIN:
            columns |= _gain_columns(None)  # people who ask for more know the rule that ended it
    change_columns(sweep, **columns)
    wakeups.advance(sweep.pk)


NEVER_EMPTY = {"name", "min_width", "max_width"}
CONTINUE = {"trials", "device_hours", "stop_when"}  # what an ended sweep may lack
_COLUMNS = {
    "name": "name",
    "trials": "max_trials",
    "device_hours": "max_device_s",
    "min_width": "min_width",
    "max_width": "max_width",
}


def _has_more_budget(sweep: Sweep, after: Mapping[str, Any]) -> bool:
    trials, device_s = (
        math.inf if after[name] is None else after[name] for name in ("max_trials", "max_device_s")
    )
    used_s = sweep.trials.aggregate(used=Sum("job__attained_gpu_s"))["used"] or 0.0
    return bool(trials > sweep.trials.filter(lost=False).count() and device_s > used_s)
