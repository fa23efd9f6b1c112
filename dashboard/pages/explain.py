"""Why one job waits, as a piece of the Queue: what would start it now, who is before it, how far to trust the range."""

from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET

from dashboard.pages.reader import signed_in
from dashboard.parts import plan_changes
from orchestrator.models import Job
from orchestrator.scheduler import passes
from orchestrator.scheduler.forecast.planning import look_ahead

MOST_NAMED = 5


@require_GET
def explain(request: HttpRequest, job_id: UUID) -> HttpResponse:
    user = signed_in(request)
    job = get_object_or_404(Job.objects.visible_to(user).select_related("owner", "pool"), pk=job_id)
    blocking = Job.objects.filter(pk__in=[each for each in job.wait_blocked_by if _is_id(each)])
    context = {
        "job": job,
        "changes": plan_changes.told(look_ahead(job, user).search.changes),
        "blocking": [
            {"job": each, "mine": each.owner_id == user.pk}
            for each in blocking.select_related("owner")[:MOST_NAMED]
        ],
        "calibration": passes.calibration(),
    }
    return render(request, "dashboard/_explain.html", context)


def _is_id(text: object) -> bool:
    try:
        UUID(str(text))
    except ValueError:
        return False
    return True
