"""What if: an operator asks how the recorded weeks would have gone in another pool or under another policy."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_GET, require_http_methods

from berth.shared import words
from dashboard.pages.reader import signed_in
from orchestrator.exceptions import Forbidden, Malformed, Sentence
from orchestrator.models import Pool
from orchestrator.people import rights
from orchestrator.scheduler.forecast import replay_runs
from orchestrator.scheduler.forecast.replay_runs import ReplayState, StoredAnswer
from orchestrator.scheduler.forecast.replays import Question, ReplayRow
from orchestrator.scheduler.simulator.variants import MOST_SLICES, Variant
from orchestrator.sentences.errors import messages_of, said

PERIODS = (7, 14, 28, 90)  # days
HOUR_S = 3600
LOOK_AGAIN_S = 2
_KEY = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"[+-]?\d{1,4}")


@require_http_methods(["GET", "POST"])
def whatif(request: HttpRequest) -> HttpResponse:
    pools = _operated(request)
    if request.method == "POST":
        try:
            question = _question(request.POST, pools)
        except Malformed as error:
            return _show(request, pools, fields=request.POST, error=error, status=400)
        return redirect("whatif-answer", replay_runs.ask(question))
    return _show(request, pools, fields=request.GET)


@require_GET
def whatif_answer(request: HttpRequest, key: str) -> HttpResponse:
    state = replay_runs.state_of(key) if _KEY.fullmatch(key) else None
    if state is None:
        raise Http404
    question = replay_runs.read_question(key)
    pools = _operated(request)
    if question.pool not in pools:
        raise Http404
    found: StoredAnswer = replay_runs.read_answer(key) if state == ReplayState.DONE else {}
    answer = found.get("answer")
    page = _show(
        request,
        pools,
        fields={"pool": question.pool, "days": str(question.days)},
        state=state,
        problem=said(replay_runs.problem_of(found)),
        rows=_rows(question, answer["rows"]) if answer else [],
        job_count=answer["jobs"] if answer else 0,
        device_count=answer["devices"] if answer else 0,
        period=_days(question.days),
    )
    if state == ReplayState.RUNNING:
        page["Refresh"] = f"{LOOK_AGAIN_S}; url={reverse('whatif-answer', args=[key])}"
    return page


def _operated(request: HttpRequest) -> list[str]:
    """The pools that this reader operates; 404 if there is not one."""
    user = signed_in(request)
    found = []
    for name in Pool.objects.values_list("name", flat=True):
        try:
            rights.check_operate(user, name)
        except Forbidden:
            continue
        found.append(name)
    if not found:
        raise Http404
    return found


def _question(fields: Mapping[str, Any], pools: list[str]) -> Question:
    """The question that the form asks; each choice is one row of the answer.

    Raises:
        Malformed: not a number, or one that does not fit the pool.
    """
    pool, days = fields.get("pool", pools[0]), fields.get("days", "28")
    if pool not in pools:
        raise Malformed("There is no such pool.", fields={"pool": ["choose a pool that you operate"]})
    if days not in map(str, PERIODS):
        raise Malformed("There is no such time.", fields={"days": ["choose one from the list"]})
    more, split = _number(fields, "more"), _number(fields, "split")
    slices = _number(fields, "slices") or MOST_SLICES
    variants = []
    if more:
        variants.append(Variant(more_devices=more))
    if fields.get("no_preemption"):
        variants.append(Variant(preemption=False))
    if fields.get("fifo"):
        variants.append(Variant(order="fifo"))
    if fields.get("share"):
        variants.append(Variant(measured_memory=True))
    if split:
        variants.append(Variant(split_devices=split, slices=slices))
    until_s = (
        timezone.now().timestamp() // HOUR_S * HOUR_S
    )  # the same question within an hour has the same answer
    return Question(pool, int(days), until_s, variants)


def _number(fields: Mapping[str, Any], name: str) -> int:
    text = str(fields.get(name, "")).strip()
    if not text:
        return 0
    if not _NUMBER.fullmatch(text):
        raise Malformed(
            Sentence("{name} is not a whole number.", name=name), fields={name: ["give a whole number"]}
        )
    return int(text)


def _show(
    request: HttpRequest,
    pools: list[str],
    *,
    fields: Mapping[str, Any],
    error: Malformed | None = None,
    status: int = 200,
    **more: Any,
) -> HttpResponse:
    context = {
        "nav": "usage",
        "pools": pools,
        "periods": {str(days): _days(days) for days in PERIODS},
        "fields": {
            "pool": fields.get("pool", pools[0]),
            "days": fields.get("days", "28"),
            "more": fields.get("more", "1"),
            "split": fields.get("split", ""),
            "slices": fields.get("slices", str(MOST_SLICES)),
        },
        "most_slices": MOST_SLICES,
        "errors": {name: texts[0] for name, texts in messages_of(error).items()} if error else {},
        **more,
    }
    return render(request, "dashboard/whatif.html", context, status=status)


def _days(days: int) -> str:
    return ngettext("{n} day", "{n} days", days).format(n=days)


class AnsweredRow(TypedDict):
    """A row of the answer, as it is shown."""

    name: str
    left_out: int
    # Without a job that ended there is no more to show.
    jobs: NotRequired[float]
    mean_wait: NotRequired[str]
    p95_wait: NotRequired[str]
    turnaround: NotRequired[str]
    slowdown: NotRequired[str]
    fairness: NotRequired[str]
    used: NotRequired[str]
    restarts: NotRequired[float]


def _rows(question: Question, rows: Sequence[ReplayRow]) -> list[AnsweredRow]:
    names = [_("what happened"), _("as it is now"), *map(_name, question.variants)]
    return [_row(name, row) for name, row in zip(names, rows, strict=True)]


def _name(variant: Variant) -> str:
    """What a variant changes, in the reader's language."""
    parts = []
    if more := variant.more_devices:
        said_more = (
            ngettext("{n} device more", "{n} devices more", more)
            if more > 0
            else ngettext("{n} device fewer", "{n} devices fewer", -more)
        )
        parts.append(said_more.format(n=abs(more)))
    if not variant.preemption:
        parts.append(_("no preemption"))
    if variant.order == "fifo":
        parts.append(_("first come, first served"))
    if variant.measured_memory:
        parts.append(_("shared by measured memory"))
    if split := variant.split_devices:
        said_split = ngettext("{n} device cut into {slices}", "{n} devices cut into {slices}", split)
        parts.append(said_split.format(n=split, slices=variant.slices))
    return ", ".join(parts)


def _row(name: str, row: ReplayRow) -> AnsweredRow:
    found = row["summary"]
    if found is None:
        return {"name": name, "left_out": row["left_out"]}
    return {
        "name": name,
        "left_out": row["left_out"],
        "jobs": found["jobs"],
        "mean_wait": words.duration(found["mean_wait_s"]),
        "p95_wait": words.duration(found["p95_wait_s"]),
        "turnaround": words.duration(found["mean_turnaround_s"]),
        "slowdown": f"{found['p95_slowdown']:.1f}",
        "fairness": f"{found['fairness']:.2f}",
        "used": f"{found['used_percent']:.0f} %",
        "restarts": found["restarts"],
    }
