"""Projects: the reader's, and the page of one with its jobs, notes and members."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.pages.reader import signed_in
from dashboard.parts import curves, rows, showing
from orchestrator.exceptions import NotFound
from orchestrator.models import Job, MemberRole, Project
from orchestrator.people import rights
from orchestrator.sharing import notes, projects

MOST_PROJECTS = 300
MOST_JOBS = 40


@require_GET
def list_projects(request: HttpRequest) -> HttpResponse:
    """The reader's projects; operators of every pool see all."""
    user = signed_in(request)
    found = projects.visible_to(user).prefetch_related("memberships__user")[:MOST_PROJECTS]
    context = {
        "nav": "projects",
        "projects": [(project, _newest(request, project), _owners(project)) for project in found],
        "may_create": rights.widest_scope(user) != "read",
    }
    return render(request, "dashboard/projects.html", context)


@require_GET
def project(request: HttpRequest, name: str) -> HttpResponse:
    """One project; 404 for people who are not in it."""
    user = signed_in(request)
    try:
        found = projects.find(user, name)
    except NotFound as error:
        raise Http404 from error
    jobs = Job.objects.visible_to(user).filter(project=found)
    newest = list(jobs.select_related("owner").order_by("-id")[:MOST_JOBS])
    written = list(notes.of_project(found)[: showing.MOST_NOTES])
    context = {
        "nav": "projects",
        "project": found,
        "jobs": [
            (job, rows.main_loss(job.last_values), curves.path_of(job) if job.metric_seq else "")
            for job in newest
        ],
        "total": jobs.count(),
        "hidden": Job.objects.filter(project=found).count() - jobs.count(),
        "members": found.memberships.select_related("user").order_by("user__username"),
        "notes": showing.removable(user, written),
        "about": f"projects/{found.pk}",
        "manages": projects.manages(user, found),
        "may_note": rights.widest_scope(user) != "read",
        "is_member": found.memberships.filter(user=user).exists(),
        "roles": MemberRole.values,
    }
    return render(request, "dashboard/project.html", context)


def _newest(request: HttpRequest, project: Project) -> Job | None:
    """The newest job that the reader sees."""
    return Job.objects.visible_to(request.user).filter(project=project).order_by("-id").first()


def _owners(project: Project) -> list[str]:
    return sorted(
        each.user.get_username() for each in project.memberships.all() if each.role == MemberRole.OWNER
    )
