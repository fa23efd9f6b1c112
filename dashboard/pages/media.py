"""What a job reported besides numbers: a panel of its page, filled by a script, one value at a time."""

from dataclasses import dataclass
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from dashboard.pages.job import visible_job
from orchestrator.api.resources.media import content_of, folder_of, media_of
from orchestrator.models import Job
from orchestrator.sentences.errors import sentence_of
from orchestrator.store.metrics import media

MOST_SHOWN = 60  # names; the REST API has all
MOST_BESIDE = 12  # names on the page of a model
MOST_ROWS = 100
WIDTH, HEIGHT = 320, 120  # of a histogram


@dataclass(frozen=True, slots=True)
class Reel:
    """All values of one kind and name, in the order of their reports."""

    kind: str
    name: str
    frames: list[media.Medium]

    @property
    def last(self) -> int:
        return len(self.frames) - 1


@dataclass(frozen=True, slots=True)
class Bar:
    """One bin of a histogram."""

    x: float
    y: float
    width: float
    height: float
    words: str


@require_GET
def job_media(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """The panel's inside; with ``kind``, ``name`` and ``at`` one value of it."""
    job = visible_job(request, job_id)
    reels = _reels(job)
    if "at" not in request.GET:
        shown = reels[:MOST_SHOWN]
        context = {"job": job, "reels": [(reel, _shown(job, reel.frames[-1])) for reel in shown]}
        return render(request, "dashboard/_media_reels.html", {**context, "more": len(reels) - len(shown)})
    for reel in reels:
        if (reel.kind, reel.name) == (request.GET.get("kind"), request.GET.get("name")):
            return render(request, "dashboard/_medium.html", {"shown": _shown(job, _at(reel, request))})
    raise Http404


def newest_of(job: Job) -> tuple[list[tuple[Reel, dict[str, object]]], int]:
    """The newest value of each name for another page, and how many more names there are."""
    reels = _reels(job)
    shown = [
        (Reel(each.kind, each.name, each.frames[-1:]), _shown(job, each.frames[-1]))
        for each in reels[:MOST_BESIDE]
    ]
    return shown, len(reels) - len(shown)


def _reels(job: Job) -> list[Reel]:
    frames: dict[tuple[str, str], list[media.Medium]] = {}
    for each in media_of(job):
        frames.setdefault((each.kind, each.name), []).append(each)
    return [Reel(kind, name, found) for (kind, name), found in sorted(frames.items())]


def _at(reel: Reel, request: HttpRequest) -> media.Medium:
    try:
        return reel.frames[int(request.GET["at"])]
    except (ValueError, IndexError):
        raise Http404 from None


def _shown(job: Job, medium: media.Medium) -> dict[str, object]:
    shown: dict[str, object] = {"medium": medium, "kind": medium.kind, "many": job.attempt_count > 1}
    if medium.kind == "image":
        return {**shown, "src": content_of(job, medium)}
    try:
        value = media.read_value(folder_of(job), medium)
    except media.NotReadable as error:
        return {**shown, "kind": "unreadable", "why": sentence_of(error)}
    if "edges" in value:
        first, last = value["edges"][0], value["edges"][-1]
        return {**shown, **value, "bars": _bars(value), "first": first, "last": last}
    if "rows" in value:
        return {
            **shown,
            **value,
            "rows": value["rows"][:MOST_ROWS],
            "is_cut": value["rows_total"] > MOST_ROWS,
        }
    return {**shown, **value, "is_cut": value["characters"] > len(value["text"])}


def _bars(value: media.Histogram) -> list[Bar]:
    counts, edges = value["counts"], value["edges"]
    most, width = max(counts, default=0) or 1, WIDTH / max(1, len(counts))
    return [
        Bar(
            round(at * width, 2),
            round(HEIGHT - HEIGHT * count / most, 2),
            round(width * 0.92, 2),
            round(HEIGHT * count / most, 2),
            _("{low} to {high}: {count}").format(
                low=f"{edges[at]:.4g}", high=f"{edges[at + 1]:.4g}", count=f"{count:,}"
            ),
        )
        for at, count in enumerate(counts)
    ]
