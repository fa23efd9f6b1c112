"""What becomes of a waiting job once its code is fetched: the rest of its submit."""

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db import transaction

from berth.shared.arguments import WrongUse
from berth.shared.job_fields import STARTS
from berth.shared.project_file import NAME as PROJECT_FILE
from berth.shared.project_file import merge, parse_project
from orchestrator.exceptions import Impossible, Malformed, OrchestratorError, Sentence
from orchestrator.facts.endings import Ended
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import fetches, lifecycle
from orchestrator.jobs.environments import requests
from orchestrator.jobs.submission import checks, code, intake, rows, starts
from orchestrator.models import WAITING_STATES, Checkout, ExitKind, Job
from orchestrator.models.jobs import Columns
from orchestrator.people import quotas
from orchestrator.spec.job_spec import JobSpec
from orchestrator.store.bundles import bundles

DEFAULTS: Mapping[str, Any] = JobSpec().model_dump(mode="json")
_OF_SUBMIT = ("array",)  # fields that berth.toml of fetched code cannot set any more


def take_code(job: Job, checkout: Checkout) -> None:
    """Give a job its code, the settings of berth.toml and its packages; fail it where the code cannot be run.

    Raises:
        StaleJob, IllegalTransition: the job was changed or ended just now.
    """
    git = {
        "commit": checkout.commit,
        "branch": checkout.branch or None,
        "dirty": False,
        "url": checkout.url,
    }
    with transaction.atomic():
        # The row as it is now, locked: the owner may change or cancel it at the same time.
        job = Job.objects.select_for_update(of=("self",)).select_related("owner").get(pk=job.pk)
        if job.state not in WAITING_STATES or job.bundle:
            return
        told = fact(
            Happened.CODE_FETCHED,
            url=checkout.url,
            ref=checkout.ref,
            commit=checkout.commit,
            notes=list(checkout.notes),
        )
        lifecycle.remark(job, told, actor="scheduler")
        job.spec_fields = {**job.spec_fields, "git": git}
        Job.objects.filter(pk=job.pk).update(bundle=checkout.bundle, spec_fields=job.spec_fields)
        try:
            spec = _whole_spec(job, checkout)
            columns = _columns(job, spec, checkout.bundle)
        except OrchestratorError as error:
            why = fact(Ended.CODE_REFUSED, url=checkout.url, commit=checkout.commit, message=str(error))
            job.refresh_from_db()
            lifecycle.fail_waiting(job, why=why, kind=ExitKind.CODE)
            return
        Job.objects.filter(pk=job.pk).update(**columns)
        job.refresh_from_db()
        fetches.ask_again(job, parent=job)  # berth.toml may name data that the submit did not


def _whole_spec(job: Job, checkout: Checkout) -> JobSpec:
    """The job with what berth.toml of its code adds; what the submit named goes before.

    Raises:
        OrchestratorError: the file or a field cannot be read.
    """
    stored = bundles.open_bundle(settings.HOME.bundles, checkout.bundle)
    given = {
        name: value
        for name, value in job.spec_fields.items()
        if name in checkout.given or value != DEFAULTS.get(name)
    }
    if given.get("entrypoint") == DEFAULTS["entrypoint"] and "entrypoint" not in checkout.given:
        del given["entrypoint"]
    text = requests.reader(checkout.bundle)(PROJECT_FILE)
    try:
        project = parse_project(text or "", PROJECT_FILE)
    except WrongUse as error:
        raise Malformed(str(error)) from None
    if refused := next((name for name in _OF_SUBMIT if name in project), None):
        raise Malformed(
            Sentence(
                "{file} sets {refused}, which code from git cannot; give it with the submit.",
                file=PROJECT_FILE,
                refused=refused,
            )
        )
    merged = merge(project, given, names_script=False)
    if not any(merged.get(name) for name in STARTS):
        merged["entrypoint"] = (
            starts.only_script([file.path for file in stored.files]) or DEFAULTS["entrypoint"]
        )
    return intake.parse_spec({**merged, "source": {"bundle": checkout.bundle}})


def _check_budget(job: Job, spec: JobSpec) -> None:
    """Hold an agent's job to the devices and the time against which its token's budget was checked.

    Raises:
        Impossible: berth.toml asks for others.
    """
    submitted = job.spec
    if job.agent and _budgeted(spec) != _budgeted(submitted):
        raise Impossible(
            Sentence(
                "{file} asks for other devices or another time limit than the submit, against which the budget of "
                "the agent's token was checked; give gpus and time_limit_s with the submit.",
                file=PROJECT_FILE,
            )
        )


def _budgeted(spec: JobSpec) -> tuple[int, int | None, float | None]:
    return (spec.gpus, spec.max_gpus, spec.time_limit_s)


def _columns(job: Job, spec: JobSpec, bundle: str) -> Columns:
    """The columns of the job's row that its code decides.

    Raises:
        OrchestratorError: the job cannot start from this code, or not here.
    """
    _check_budget(job, spec)
    spec = checks.resolve(job.owner, spec)
    quotas.check_submit(job.owner, spec, 0)
    code.store_code(spec, None, None)  # the bundle is there, with what the job starts
    wanted = requests.of_submit(job.owner, spec, bundle)
    columns = rows.columns_of(job.owner, wanted.spec, bundle)
    if job.array_index is not None:
        end = f"[{job.array_index}]"
        columns["name"] = f"{columns['name'][: 200 - len(end)]}{end}"
    columns["environment"] = rows.environment_row(wanted.declared)
    return {name: value for name, value in columns.items() if name not in rows.FIRST_COLUMNS}
