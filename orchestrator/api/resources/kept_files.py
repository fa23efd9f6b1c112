"""Environments and caches on this server: what is there, how large, who used it last; and their removal."""

from datetime import datetime
from uuid import UUID

from django.http import HttpResponse
from ninja import Router
from pydantic import BaseModel, Field

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.resources.environments import PackageOut
from orchestrator.jobs import kept_files
from orchestrator.people import audit

router = Router()


class KeptEnvironmentOut(BaseModel):
    """Packages that are installed for jobs, or a container image that was fetched for them."""

    key: str
    origins: list[str] = Field(
        description="the files that list the packages, or --with; the names of an image"
    )
    packages: list[PackageOut]
    own_torch: bool = Field(
        description="false: it uses the server's torch, or its registered interpreter's; of an image: it has none"
    )
    digest: str = Field(description="the digest of a container image; empty: packages")
    size_bytes: int | None = Field(
        description="files shared with other environments counted; null: not measured yet"
    )
    jobs: int = Field(description="that the caller may see")
    last_job: UUID
    last_used_by: str
    last_used_at: datetime
    in_use: bool = Field(description="a job that waits or runs needs it, so it cannot be removed")
    may_remove: bool


class KeptCacheOut(BaseModel):
    """What jobs of one person downloaded and compiled."""

    owner: str
    size_bytes: int
    folders: dict[str, int] = Field(description="bytes by name: huggingface, torch, triton, xdg, git")
    last_used_at: datetime | None
    in_use: bool = Field(description="a job of this person runs, so it cannot be cleared")


class KeptOut(BaseModel):
    measured_at: datetime | None = Field(description="sizes are counted every ten minutes; null: not yet")
    environments: list[KeptEnvironmentOut] = Field(description="the last used first")
    caches: list[KeptCacheOut] = Field(description="the caller's; an admin sees all, the largest first")
    shared_bytes: dict[str, int] = Field(
        description="by name: cache (downloads), bytecode (compiled modules), models (kept by administrators for everybody)"
    )


@router.get("", response=KeptOut)
def list_environments(request: ApiRequest) -> KeptOut:
    """Environments of jobs that the caller may see, and the caller's cache; admins see all."""
    found = kept_files.kept(request.user)
    return KeptOut(
        measured_at=found.measured_at,
        environments=[_show(each) for each in found.environments],
        caches=[
            KeptCacheOut(
                owner=each.owner.username,
                size_bytes=each.size_bytes,
                folders=dict(each.folders),
                last_used_at=each.used_at,
                in_use=each.is_in_use,
            )
            for each in found.caches
        ],
        shared_bytes=dict(found.shared),
    )


def _show(each: kept_files.KeptEnvironment) -> KeptEnvironmentOut:
    return KeptEnvironmentOut(
        key=each.key,
        origins=each.origins,
        packages=[PackageOut(**package) for package in each.packages],
        own_torch=each.own_torch,
        digest=each.digest,
        size_bytes=each.size_bytes,
        jobs=each.jobs,
        last_job=each.last_job.pk,
        last_used_by=each.last_job.owner.username,
        last_used_at=each.last_job.submitted_at,
        in_use=each.is_in_use,
        may_remove=each.may_remove,
    )


@router.delete("/built/{key}", response={204: None})
def remove_environment(request: ApiRequest, key: str) -> HttpResponse:
    """Remove installed packages; a job that needs them again has them installed again, with the same versions."""
    kept_files.remove_environment(request.user, key)
    audit.record(
        request.user,
        "environment.removed",
        f"environment {key[:12]}",
        "Removed.",
        address=audit.address_of(request),
    )
    return HttpResponse(status=204)


@router.delete("/caches/{username}", response={204: None})
def clear_cache(request: ApiRequest, username: str) -> HttpResponse:
    """Remove what jobs of a person downloaded and compiled: the caller's own, or for admins anybody's."""
    kept_files.clear_cache(request.user, username)
    audit.record(
        request.user, "cache.cleared", f"user {username}", "Cleared.", address=audit.address_of(request)
    )
    return HttpResponse(status=204)
