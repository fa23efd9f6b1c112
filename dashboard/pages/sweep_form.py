"""The form that begins a sweep: a script, a space in rows or as YAML, a goal and a budget."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

import yaml
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from berth.shared.job_fields import STARTS
from berth.shared.space_yaml import read_yaml
from dashboard.pages.reader import signed_in
from dashboard.pages.submit import Code, chosen_data, data_choice, filled, pool_choice, signer, take_code
from dashboard.parts import forms
from orchestrator.api.http.reading import JsonObject
from orchestrator.exceptions import OrchestratorError, Sentence
from orchestrator.models import Job, Pool, Sweep
from orchestrator.people import rights
from orchestrator.sentences.errors import said
from orchestrator.sweeps import asking, creation
from orchestrator.sweeps.core.flags import read_flags
from orchestrator.sweeps.core.ready import READY, flags_of
from orchestrator.sweeps.core.space import WrongSpace

MOST_ROWS = 100
FIRST_ROWS = 3
MOST_EARLIER = 20  # ended sweeps to learn from
# The kinds of a row, and what stands before its values in the short form.
KINDS = (
    ("log", gettext_lazy("number (log scale)"), "log:"),
    ("float", gettext_lazy("number"), "float:"),
    ("int", gettext_lazy("whole number"), "int:"),
    ("int-log", gettext_lazy("whole number (log)"), "int-log:"),
    ("choice", gettext_lazy("one of these"), "choice:"),
    ("bool", gettext_lazy("true or false"), ""),
    ("fixed", gettext_lazy("always the same"), "fixed:"),
)
PREFIXES = {kind: prefix for kind, _text, prefix in KINDS}
DIRECTIONS = ("minimize", "maximize")
SAMPLERS = ("auto", "tpe", "random", "grid", "cmaes", "gp", "nsga2")
TEXTS = (
    *("metric", "trials", "device_hours", "max_width", "sampler", "direction", "yaml", "name", "hand_over"),
    *("further", "least_gain", "gain_hours", "warm_start"),
)
JOB_FIELDS = tuple(each for each in (*forms.MAIN, *forms.MORE) if each.name not in {"name", "array"})
EMPTY: Mapping[str, str] = {"max_width": "4", "sampler": "auto", "hand_over": "args"}


@dataclass(slots=True)
class Row:
    """One setting as typed."""

    name: str = ""
    kind: str = "log"
    values: str = ""
    when: str = ""
    errors: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.name or self.values or self.when)

    def flag(self) -> str:
        """The row in the short form."""
        condition = f"@{self.when}" if self.when else ""
        values = "bool" if self.kind == "bool" else f"{PREFIXES.get(self.kind, '')}{self.values}"
        return f"{self.name}={values}{condition}"


@dataclass(slots=True)
class Filled:
    """The form with what was typed, and what is wrong with it by the names of its controls."""

    texts: dict[str, str]
    rows: list[Row]
    code: Code
    errors: dict[str, list[str]] = field(default_factory=dict)
    status: int = 200

    def wrong(self, name: str, *sentences: str) -> None:
        self.errors.setdefault(name, []).extend(said(sentence) for sentence in sentences)


@require_http_methods(["GET", "POST"])
def new_sweep(request: HttpRequest) -> HttpResponse:
    """``from`` is the id of a job whose script and fields the trials take."""
    if request.method == "GET":
        return _page(request, _start_from(request))
    texts = {
        name: value[: forms.MOST_TEXT + 1] for name, value in request.POST.items() if isinstance(value, str)
    }
    code, errors = take_code(request)
    form = Filled(texts, _rows_of(request), code, errors)
    body = _read(request, form)
    try:
        spec = asking.parse(body)
        creation.read_whole_space(spec)
        if not form.errors:
            key = texts.get("key", "")[:100] or None
            created = creation.create(
                signed_in(request), spec, uploaded=code.sha256 or None, idempotency_key=key
            )
            return redirect("sweep", sweep_id=created.sweep.pk)
    except OrchestratorError as error:
        _place(form, error)
    form.status = form.status if form.status >= 400 else 400
    return _page(request, form)


def _rows_of(request: HttpRequest) -> list[Row]:
    lists = [request.POST.getlist(f"space_{name}")[:MOST_ROWS] for name in ("name", "kind", "values", "when")]
    texts = [[text.strip()[:1000] for text in each] for each in lists]
    return [Row(*cells) for cells in zip(*texts, strict=False)]


def _read(request: HttpRequest, form: Filled) -> JsonObject:
    """The sweep that the form describes; what cannot be read is noted in its errors."""
    texts = {name: form.texts.get(name, "").strip() for name in TEXTS}
    job, unreadable = forms.read_fields(form.texts, forms.chosen_data(request.POST))
    form.errors |= {name: told for name, told in unreadable.items() if name not in texts}
    for name in ("name", "array"):
        job.pop(name, None)
    if form.code.sha256:
        job["source"] = {"bundle": form.code.sha256}
        if form.code.entrypoint and not any(job.get(name) for name in STARTS):
            job["entrypoint"] = form.code.entrypoint
    width = _number(form, "max_width", texts["max_width"])
    body = {
        "job": job,
        "space": _read_yaml(form, texts["yaml"]),
        "set": _read_rows(form),
        "metric": texts["metric"],
        "budget": {
            name: number
            for name in ("trials", "device_hours")
            if (number := _number(form, name, texts[name])) is not None
        },
        "sampler": texts["sampler"] or "auto",
        "max_width": asking.DEFAULT_WIDTH if width is None else width,
        "hand_over": texts["hand_over"] or "args",
        "early_stopping": form.texts.get("early_stopping", "1") == forms.TRUE,
    }
    if texts["direction"]:
        body["direction"] = texts["direction"]
    if texts["warm_start"]:
        body["warm_start"] = texts["warm_start"]
    _read_further(form, body)
    _read_gain(form, body)
    return body | ({"name": texts["name"]} if texts["name"] else {})


def _read_further(form: Filled, body: JsonObject) -> None:
    """Take the metrics beside the first one: a line for each, with its direction behind it."""
    lines = [line.split() for line in form.texts.get("further", "").splitlines() if line.strip()]
    if not lines:
        return
    if any(len(line) != 2 or line[1] not in DIRECTIONS for line in lines):
        form.wrong(
            "further", "Give a metric in each line, then minimize or maximize, such as: params minimize"
        )
        return
    first = {"name": body.pop("metric"), "direction": body.pop("direction", "")}
    body["metrics"] = [first, *({"name": name, "direction": direction} for name, direction in lines)]


def _read_gain(form: Filled, body: JsonObject) -> None:
    """Take the rule that ends a sweep by its expected gain."""
    texts = {name: form.texts.get(name, "").strip() for name in ("least_gain", "gain_hours")}
    if not any(texts.values()):
        return
    try:
        gain, hours = float(texts["least_gain"]), float(texts["gain_hours"])
    except ValueError:
        form.wrong(
            "least_gain", "Give both numbers: the least gain, and the device-hours in which it is expected."
        )
        return
    body["stop_when"] = {"gain": gain, "device_hours": hours}


def _read_rows(form: Filled) -> list[str]:
    """The rows in the short form; one that cannot be read has its error."""
    flags = []
    for row in form.rows:
        if row.is_empty:
            continue
        try:
            read_flags([row.flag()])
        except WrongSpace as error:
            row.errors.append(said(error.why))
            form.wrong("space", "See the settings marked below.")
        else:
            flags.append(row.flag())
    return flags


def _read_yaml(form: Filled, text: str) -> JsonObject:
    if not text:
        return {}
    try:
        space = read_yaml(text)
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        where = Sentence(" in line {line}", line=place.line + 1) if place else ""
        form.wrong(
            "yaml",
            Sentence(
                "This is not YAML{where}: {problem}.",
                where=where,
                problem=getattr(error, "problem", None) or Sentence("it cannot be read"),
            ),
        )
        return {}
    if not isinstance(space, dict):
        form.wrong(
            "yaml", "Give the settings by name, such as lr: {type: float, low: 1.0e-5, high: 0.1, log: true}."
        )
        return {}
    return {str(name): fields for name, fields in space.items()}


def _number(form: Filled, name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        return float(text) if name == "device_hours" else int(text)
    except ValueError:
        form.wrong(
            name,
            Sentence(
                "{text!r} is not a number." if name == "device_hours" else "{text!r} is not a whole number.",
                text=text[:40],
            ),
        )
        return None


def _place(form: Filled, error: OrchestratorError) -> None:
    """Put the messages of an error where their controls are."""
    form.status = error.status
    for name, texts in (error.fields or {"": [error.args[0]]}).items():
        name = _PLACES.get(name, name).removeprefix("budget.")
        if name == "budget":
            name, texts = "trials", ["Give a number of trials, device-hours or both."]
        if name == "Idempotency-Key":
            name, texts = "", ["This form was submitted before. Press Begin again to begin another sweep."]
        if name == "space" and not _place_in_rows(form, texts):
            name = "yaml" if form.texts.get("yaml", "").strip() else "space"
        if name == "metric" and not form.texts.get("metric", "").strip():
            texts = ["Name the metric that the trials report, such as val/loss."]
        form.wrong(forms.FORM_NAMES.get(name, name), *texts)


_PLACES = {
    "metrics": "further",
    "metrics.0.name": "metric",
    "metrics.0.direction": "direction",
    "stop_when": "least_gain",
    "stop_when.gain": "least_gain",
    "stop_when.device_hours": "least_gain",
}


def _place_in_rows(form: Filled, texts: list[str]) -> bool:
    """Whether the sentences belong to a row, by the name before their colon."""
    for row in form.rows:
        mine = [
            said(each.values["why"])
            for each in texts
            if row.name and isinstance(each, Sentence) and each.values.get("setting") == row.name
        ]
        row.errors += mine
        if mine:
            texts[:] = ["See the settings marked below."]
            return True
    return False


def _start_from(request: HttpRequest) -> Filled:
    """An empty form, or one with a ready space, or with the script and the fields of an earlier job."""
    rows = _ready_rows(request.GET.get("ready", ""))
    try:
        earlier = Job.objects.visible_to(request.user).filter(pk=UUID(request.GET.get("from", ""))).first()
    except ValueError:
        earlier = None
    if earlier is None or not earlier.bundle:
        return Filled({**EMPTY, **forms.default_texts()}, rows, Code())
    texts = {
        **EMPTY,
        **forms.texts_of(earlier, shown=rights.texts_of(earlier, request.user.pk)),
        "name": f"{earlier.name} sweep"[:180],
    }
    return Filled(
        texts,
        rows,
        Code(earlier.bundle, _("the code of {job}").format(job=f"{earlier.name} #{earlier.short_id}")),
    )


def _ready_rows(name: str) -> list[Row]:
    """The rows of a ready space; none for a name that there is not."""
    if name not in READY:
        return []
    rows = []
    for flag in flags_of(name):
        setting, _equals, text = flag.partition("=")
        kind, _colon, values = text.partition(":")
        rows.append(Row(setting, kind, values))
    return rows


def _page(request: HttpRequest, form: Filled) -> HttpResponse:
    if form.code.sha256:
        form.code.signed = signer(request).sign(form.code.sha256)
    main = [each for each in JOB_FIELDS if each.form == "main"]
    more = [each for each in JOB_FIELDS if each.form == "more"]
    shown = {"file", "space", "gpus", "pool", "datasets", *TEXTS, *(each.form_name for each in JOB_FIELDS)}
    context = {
        "nav": "sweeps",
        "code": form.code,
        "texts": form.texts,
        "errors": form.errors,
        "other_errors": [
            text for name, texts_of in form.errors.items() if name not in shown for text in texts_of
        ],
        "rows": form.rows + [Row() for _ in range(FIRST_ROWS - len(form.rows))],
        "ready": [
            {
                "name": name,
                "from": request.GET.get("from", ""),
                "title": _(ready.title.lower()),
                "help": _(ready.help),
            }
            for name, ready in READY.items()
        ],
        "kinds": [(kind, text) for kind, text, _prefix in KINDS],
        "directions": DIRECTIONS,
        "samplers": SAMPLERS,
        "earlier": Sweep.objects.visible_to(request.user).filter(ended_at__isnull=False)[:MOST_EARLIER],
        "early_stopping": form.texts.get("early_stopping", "1") == forms.TRUE,
        "pools": [pool_choice(pool) for pool in Pool.objects.prefetch_related("devices")],
        "pool": form.texts.get("pool", "default"),
        **data_choice(request, chosen_data(request, form.texts)),
        "gpus": form.texts.get("gpus", "1"),
        "main_fields": filled(main, form.texts, form.errors),
        "more_fields": filled(more, form.texts, form.errors),
        "more_open": any(each.form_name in form.errors for each in more),
        "key": secrets.token_hex(16),
    }
    return render(request, "dashboard/sweep_new.html", context, status=form.status)
