"""One action on many jobs chosen in a list."""

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, JsonResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST

from dashboard.pages.reader import signed_in
from dashboard.parts import job_table
from orchestrator.exceptions import OrchestratorError
from orchestrator.jobs import steering
from orchestrator.jobs.submission import updates
from orchestrator.models import Job
from orchestrator.people import audit
from orchestrator.sentences.errors import sentence_of

MOST_JOBS = 200
MOST_SAID = 3


@dataclass(slots=True)
class Chosen:
    """The jobs of one request; of more that match, ``last`` is where the next request goes on."""

    jobs: list[Job]
    left: int = 0

    @property
    def last(self) -> str:
        return str(self.jobs[-1].pk) if self.jobs else ""


@require_POST
def change_many(request: HttpRequest) -> HttpResponse:
    """``job`` are ids, or ``matching`` is the address of a table, all of whose jobs are meant.

    ``action`` is one of ``ACTIONS`` or ``compare``; each job that refuses is left as it is. Of many matching jobs a
    request changes 200: the answer says how many are ``left``, and the next request goes on behind ``last``.
    """
    user, action = signed_in(request), request.POST.get("action", "")
    ids = [text for text in request.POST.getlist("job")[:MOST_JOBS] if text.replace("-", "").isalnum()]
    if action == "compare":
        return redirect(f"{reverse('compare')}?{urlencode({'jobs': ','.join(ids)}, safe=',')}")
    do = ACTIONS.get(action)
    chosen = _matching(request, user) if "matching" in request.POST else _named(user, ids)
    if do is None or not (chosen.jobs or ids):
        return _say(request, "", [_("Choose jobs in the list and an action.")], 400)
    tag = request.POST.get("tag", "").strip()
    done, refused = 0, []
    for job in chosen.jobs:
        try:
            do(request, user, job, tag)
            done += 1
        except OrchestratorError as error:
            refused.append(f"{job}: {sentence_of(error)}")
    said = DONE[action](done).format(n=f"{done:,}") if done else ""
    if chosen.left:
        left = ngettext(
            "{n} job that match are left; repeat it for them.",
            "{n} jobs that match are left; repeat it for them.",
            chosen.left,
        )
        said += f" {left.format(n=f'{chosen.left:,}')}"
    counts: dict[str, int | str] = {
        "done": done,
        "refused": len(refused),
        "left": chosen.left,
        "last": chosen.last,
    }
    return _say(request, said, refused, 200 if done else 409, counts)


def _named(user: User, ids: list[str]) -> Chosen:
    jobs = Job.objects.visible_to(user).filter(pk__in=_uuids(ids))
    return Chosen(list(jobs.select_related("owner", "pool")))


def _matching(request: HttpRequest, user: User) -> Chosen:
    """Jobs of a table's filters, newest first, from ``until`` (the newest when they were chosen) or behind ``last`` on."""
    table = job_table.read_table(user, QueryDict(request.POST["matching"][:4000].lstrip("?")))
    jobs = table.jobs
    for name, place in (("until", "pk__lte"), ("last", "pk__lt")):
        [known] = _uuids([request.POST.get(name, "")]) or [""]
        jobs = jobs.filter(**{place: known}) if known else jobs
    ids = list(jobs.order_by("-pk").values_list("pk", flat=True)[:MOST_JOBS])
    rows = Job.objects.visible_to(user).select_related("owner", "pool").in_bulk(ids)
    return Chosen([rows[pk] for pk in ids if pk in rows], max(0, jobs.order_by().count() - len(ids)))


def _uuids(ids: list[str]) -> list[str]:
    return [text for text in ids if len(text.replace("-", "")) == 32 and _is_hexadecimal(text)]


def _is_hexadecimal(text: str) -> bool:
    return not set(text.lower()) - set("0123456789abcdef-")


def _say(
    request: HttpRequest,
    said: str,
    refused: list[str],
    status: int,
    counts: dict[str, int | str] | None = None,
) -> HttpResponse:
    left = [
        *refused[:MOST_SAID],
        *([_("And {n} more.").format(n=len(refused) - MOST_SAID)] if len(refused) > MOST_SAID else []),
    ]
    if request.headers.get("X-Requested-With") == "fetch":
        return JsonResponse({"detail": " ".join([said, *left]).strip(), **(counts or {})}, status=status)
    if said:
        messages.success(request, said)
    for sentence in left:
        messages.error(request, sentence)
    back = request.POST.get("back", "")
    safe = url_has_allowed_host_and_scheme(back, allowed_hosts=None) and back.startswith("/")
    return redirect(back if safe else "jobs")


def _cancel(request: HttpRequest, user: User, job: Job, _tag: str) -> None:
    steering.steer(user, job, "cancel", address=audit.address_of(request))


def _retry(request: HttpRequest, user: User, job: Job, _tag: str) -> None:
    steering.retry(user, job, address=audit.address_of(request))


def _tag(_request: HttpRequest, user: User, job: Job, tag: str) -> None:
    updates.update(user, job, {"tags": list(dict.fromkeys([*job.tags, tag]))})


def _untag(_request: HttpRequest, user: User, job: Job, tag: str) -> None:
    updates.update(user, job, {"tags": [each for each in job.tags if each != tag]})


ACTIONS: dict[str, Callable[[HttpRequest, User, Job, str], None]] = {
    "cancel": _cancel,
    "retry": _retry,
    "tag": _tag,
    "untag": _untag,
}
DONE: dict[str, Callable[[int], str]] = {
    "cancel": lambda n: ngettext("Cancelled {n} job.", "Cancelled {n} jobs.", n),
    "retry": lambda n: ngettext("Submitted again {n} job.", "Submitted again {n} jobs.", n),
    "tag": lambda n: ngettext("Tagged {n} job.", "Tagged {n} jobs.", n),
    "untag": lambda n: ngettext("Removed the tag {n} job.", "Removed the tag {n} jobs.", n),
}
