"""Benchmarks: strategies side by side, measured by an ordinary job."""

from typing import TypedDict
from uuid import UUID

import orjson
from django.conf import settings
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods
from pydantic import BaseModel, Field, ValidationError

from dashboard.pages.reader import signed_in
from orchestrator.api.resources.job_filters import tagged
from orchestrator.exceptions import OrchestratorError
from orchestrator.jobs.submission import intake
from orchestrator.models import Job, Pool
from orchestrator.sentences.errors import messages_of
from orchestrator.spec.job_spec import JobFields
from orchestrator.store.files.untrusted import open_plain
from training.bench.cells import Cell, Measured, scaling_efficiency
from training.bench.page import Figure, make_figures

TAG = "strategy-grid"
SCRIPT = "from training.bench.__main__ import main\n\nmain()\n"
RESULT = "grid.json"
MOST_RESULT_BYTES = 4 << 20
MOST_RUNS, MOST_CELLS, MOST_NUMBERS = 20, 64, 6
STRATEGIES = {
    "single": gettext_lazy("one device"),
    "ddp": gettext_lazy("a copy on each device"),
    "zero1": gettext_lazy("split optimizer"),
    "zero2": gettext_lazy("split gradients too"),
    "fsdp": gettext_lazy("all split"),
    "pipeline": gettext_lazy("blocks in a row"),
    "placed": gettext_lazy("layers one by one"),
    "tensor": gettext_lazy("layers split"),
    "dp": gettext_lazy("one process, GPUs only"),
}
USUAL_STRATEGIES = ("ddp", "zero1", "fsdp")


class _Cell(BaseModel):
    strategy: str = Field(max_length=20)
    gpus: int = Field(ge=1, le=4096)
    batch_size: int = Field(ge=1, le=1 << 40)


class _Row(BaseModel):
    cell: _Cell
    samples_per_step: int = Field(ge=0)
    step_s: list[float] = Field(max_length=10_000)
    peak_bytes: int = Field(ge=-(1 << 50), le=1 << 50)
    communication: float | None = None
    not_measured: str = Field(max_length=400)


class _Result(BaseModel):
    """The job's result file; a script can write anything, so it is validated like any input."""

    about: str = Field(max_length=400)
    took_s: float = Field(ge=0, allow_inf_nan=False)
    advice: list[str] = Field(max_length=10)
    cells: list[_Row] = Field(max_length=500)


class FormTexts(TypedDict):
    """Texts of the form."""

    strategies: list[str]
    gpus: str
    batch_sizes: str
    steps: str
    pool: str


class CellRow(TypedDict):
    """One measured cell in words."""

    cell: Cell
    samples: str
    spread: str
    step_ms: str
    efficiency: str
    memory: str
    communication: str
    is_best: bool


@require_http_methods(["GET", "POST"])
def benchmarks(request: HttpRequest) -> HttpResponse:
    """``job`` chooses a run; without it the newest that has results."""
    user = signed_in(request)
    if request.method == "POST":
        return _start(request, user)
    return _page(request, user, None, {})


def _start(request: HttpRequest, user: User) -> HttpResponse:
    texts: FormTexts = {
        "strategies": [name for name in request.POST.getlist("strategies") if name in STRATEGIES],
        "gpus": request.POST.get("gpus", "")[:200],
        "batch_sizes": request.POST.get("batch_sizes", "")[:200],
        "steps": request.POST.get("steps", "")[:200],
        "pool": request.POST.get("pool", "")[:200],
    }
    errors: dict[str, list[str]] = {}
    gpus = _numbers("gpus", texts["gpus"], 64, errors)
    sizes = _numbers("batch_sizes", texts["batch_sizes"], 1 << 20, errors)
    steps = _numbers("steps", texts["steps"], 1000, errors)
    if not texts["strategies"]:
        errors["strategies"] = [_("Choose at least one strategy.")]
    if not errors and len(texts["strategies"]) * len(gpus) * len(sizes) > MOST_CELLS:
        text = _("That makes more than {most} cells; choose fewer strategies, devices or batch sizes.")
        errors["strategies"] = [text.format(most=MOST_CELLS)]
    if not errors:
        try:
            job = _submit(user, texts, gpus, sizes, steps)
            return redirect(f"{request.path}?job={job.pk}")
        except OrchestratorError as error:
            told = messages_of(error)
            errors["gpus" if "gpus" in told else "form"] = [text for said in told.values() for text in said]
    return _page(request, user, texts, errors, status=400)


def _submit(user: User, texts: FormTexts, gpus: list[int], sizes: list[int], steps: list[int]) -> Job:
    arguments = ["--strategies", *texts["strategies"], "--gpus", *map(str, gpus)]
    arguments += ["--batch-sizes", *map(str, sizes), "--steps", str(steps[0])]
    fields: JobFields = {
        "name": f"strategies: {', '.join(texts['strategies'])}"[:100],
        "entrypoint": "benchmark.py",
        "source": {"text": SCRIPT},
        "args": arguments,
        "gpus": max(gpus),
        "tags": [TAG],
    }
    if texts["pool"]:
        fields["pool"] = texts["pool"]
    return intake.accept(user, intake.parse_spec(fields), endpoint="form").job


def _numbers(name: str, text: str, most: int, errors: dict[str, list[str]]) -> list[int]:
    parts = text.replace(",", " ").split()
    if not parts or len(parts) > MOST_NUMBERS or not all(part.isascii() and part.isdigit() for part in parts):
        errors[name] = [_("Give up to {most} whole numbers, such as 1 2.").format(most=MOST_NUMBERS)]
        return []
    found = sorted({int(part[:20]) for part in parts})
    if found[0] < 1 or found[-1] > most:
        errors[name] = [_("Each must be between 1 and {most:,}.").format(most=most)]
        return []
    return found


def _page(
    request: HttpRequest,
    user: User,
    texts: FormTexts | None,
    errors: dict[str, list[str]],
    status: int = 200,
) -> HttpResponse:
    """``texts`` are what the form has; None: as the run that is shown, or the usual."""
    runs = list(tagged(Job.objects.visible_to(user), TAG).order_by("-submitted_at")[:MOST_RUNS])
    job, result = _choose(request, user, runs)
    measured = [_measured(row) for row in result.cells] if result else []
    context = {
        "nav": "benchmarks",
        "texts": texts or _asked(job),
        "errors": errors,
        "strategies": STRATEGIES,
        "pools": list(Pool.objects.values_list("name", flat=True)),
        "runs": runs,
        "job": job,
        "result": result,
        "rows": _rows(measured),
        "exchanged": any(each.communication is not None for each in measured),
        "left_out": _left_out(measured),
        "figures": _in_readers_language(make_figures(measured)),
        "waits": job is not None and result is None and not job.is_final,
    }
    return render(request, "dashboard/benchmarks.html", context, status=status)


def _in_readers_language(figures: list[Figure]) -> list[Figure]:
    """The titles, units and names of charts, which the benchmark's own report has in English."""
    for figure in figures:
        title, unit = figure["layout"]["title"], figure["layout"]["yaxis"]["title"]
        title["text"], unit["text"] = _(title["text"]), _(unit["text"])
        for trace in figure["data"]:
            trace["name"] = _("batch size {size}").format(size=trace["meta"]["batch_size"])
    return figures


def _choose(request: HttpRequest, user: User, runs: list[Job]) -> tuple[Job | None, _Result | None]:
    if wanted := request.GET.get("job"):
        try:
            job = Job.objects.visible_to(user).get(pk=UUID(wanted))
        except (ValueError, Job.DoesNotExist):
            raise Http404("no such job") from None
        return job, read_result(job)
    for job in runs:
        if result := read_result(job):
            return job, result
    return (runs[0], None) if runs else (None, None)


def read_result(job: Job) -> _Result | None:
    """The result in the job's output folder; None if it is missing or invalid."""
    path = settings.HOME.job(job.id).output / RESULT
    try:
        with open(open_plain(path), "rb") as file:  # noqa: PTH123 -- an open descriptor
            data = file.read(MOST_RESULT_BYTES + 1)
        return _Result.model_validate(orjson.loads(data)) if len(data) <= MOST_RESULT_BYTES else None
    except (OSError, OrchestratorError, ValidationError, ValueError):
        return None


def _measured(row: _Row) -> Measured:
    steps = [step for step in row.step_s if 0 < step < 1e6]
    return Measured(
        Cell(row.cell.strategy, row.cell.gpus, row.cell.batch_size),
        row.samples_per_step,
        steps,
        max(row.peak_bytes, 0),
        row.communication,
        row.not_measured,
    )


def _rows(measured: list[Measured]) -> list[CellRow]:
    efficiency = scaling_efficiency(measured)
    best = max((each.samples_per_s for each in measured), default=0.0)
    return [
        {
            "cell": each.cell,
            "samples": f"{each.samples_per_s:,.0f}",
            "spread": f"±{each.spread_percent:.0f} %",
            "step_ms": f"{1000 * sorted(each.step_s)[len(each.step_s) // 2]:,.1f}",
            "efficiency": f"{efficiency[each.cell]:.0f} %" if each.cell in efficiency else "",
            "memory": f"{each.peak_bytes / 2**20:,.0f} MiB" if each.peak_bytes else "",
            "communication": "" if each.communication is None else f"{100 * each.communication:.0f} %",
            "is_best": each.samples_per_s == best,
        }
        for each in measured
        if each.step_s
    ]


def _left_out(measured: list[Measured]) -> list[tuple[str, str]]:
    """Cells that were not measured, grouped by reason."""
    cells: dict[str, list[Cell]] = {}
    for each in measured:
        if not each.step_s:
            cells.setdefault(each.not_measured or _("No step was timed."), []).append(each.cell)
    return [
        (
            _("{cells} with batch size {sizes}").format(
                cells=", ".join(dict.fromkeys(f"{cell.strategy} x{cell.gpus}" for cell in alike)),
                sizes=", ".join(dict.fromkeys(str(cell.batch_size) for cell in alike)),
            ),
            reason,
        )
        for reason, alike in cells.items()
    ]


def _asked(job: Job | None) -> FormTexts:
    """The form's texts for the shown run; defaults for what its arguments do not say."""
    texts: FormTexts = {
        "strategies": list(USUAL_STRATEGIES),
        "gpus": "1 2",
        "batch_sizes": "64 128",
        "steps": "12",
        "pool": job.pool_id if job else "",
    }
    words = [str(word) for word in job.spec_fields.get("args", [])] if job else []
    given: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            given[word] = []
        elif given:
            given[next(reversed(given))].append(word)
    if names := [name for name in given.get("--strategies", []) if name in STRATEGIES]:
        texts["strategies"] = names
    texts["gpus"] = _whole_numbers(given.get("--gpus", [])) or texts["gpus"]
    texts["batch_sizes"] = _whole_numbers(given.get("--batch-sizes", [])) or texts["batch_sizes"]
    texts["steps"] = _whole_numbers(given.get("--steps", [])) or texts["steps"]
    return texts


def _whole_numbers(words: list[str]) -> str:
    numbers = [word for word in words if word.isdecimal() and len(word) <= 7]
    return " ".join(numbers[:MOST_NUMBERS])
