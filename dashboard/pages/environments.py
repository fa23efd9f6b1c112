"""Environments and caches: what is there, how large, who used it last; the buttons go through the REST API."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from dashboard.pages.reader import signed_in
from orchestrator.jobs import kept_files
from orchestrator.jobs.launch import interpreters
from orchestrator.models import Pool
from orchestrator.sentences.errors import sentence_of

LABELS = {
    "huggingface": "Hugging Face",
    "torch": "torch hub",
    "triton": "Triton",
    "xdg": _("others"),
    "git": "git",
}
MOST_NAMES = 6


@require_GET
def environments(request: HttpRequest) -> HttpResponse:
    found = kept_files.kept(signed_in(request))
    pools = [pool for pool in Pool.objects.order_by("name") if pool.pythons]
    context = {
        "nav": "environments",
        "kept": found,
        "rows": [
            {
                "kept": each,
                **_names(each),
            }
            for each in found.environments
        ],
        "caches": [
            {"kept": each, "folders": [(LABELS.get(name, name), size) for name, size in each.folders.items()]}
            for each in found.caches
        ],
        "models_bytes": found.shared.get("models"),
        "downloads_bytes": found.shared.get("cache"),
        "pythons": [
            {"pool": pool.name, "name": name, "path": path, **_versions(path)}
            for pool in pools
            for name, path in sorted(pool.pythons.items())
        ],
    }
    return render(request, "dashboard/environments.html", context)


def _names(each: kept_files.KeptEnvironment) -> dict[str, object]:
    """What its row is called: an image by its names, packages by the first of them."""
    if each.digest:
        return {"names": ", ".join(each.origins), "more": 0}
    names = ", ".join(package["name"] for package in each.packages[:MOST_NAMES])
    return {"names": names, "more": max(0, len(each.packages) - MOST_NAMES)}


def _versions(path: str) -> dict[str, str | None]:
    """What a registered interpreter says of itself, or why it does not start any more."""
    try:
        found = interpreters.versions(path)
    except interpreters.DoesNotStart as error:
        return {"problem": sentence_of(error)}
    return {"python": found.python, "torch": found.torch}
