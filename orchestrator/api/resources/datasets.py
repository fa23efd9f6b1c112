"""Dataset references."""

import os
from datetime import datetime
from typing import NoReturn

from django.db.models import QuerySet
from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel, Field, StrictStr

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import Body
from orchestrator.exceptions import NotFound, OrchestratorError, Sentence
from orchestrator.jobs import datasets, shelves
from orchestrator.models import Dataset, Scope
from orchestrator.models.datasets import DatasetQuerySet
from orchestrator.spec.data_names import DATASET_REFERENCE

router = Router()


class DatasetOut(BaseModel):
    name: str
    version: str
    reference: str
    root: str = Field(description="empty for what a person pushed")
    path: str
    description: str
    sha256: str | None = Field(description="null for data too large to hash at registration")
    size_bytes: int | None
    owner: str
    created_at: datetime
    available: bool = Field(description="the files exist now")
    pushed: bool = Field(description="its files are Berth's own; it is for its owner's jobs only")


class DatasetIn(Body):
    name: StrictStr
    version: StrictStr = "1"
    root: StrictStr | None = Field(
        None,
        description="null: the path is absolute; if no root contains it, an admin's registration adds one",
    )
    path: StrictStr
    description: StrictStr = ""


class DatasetQuery(Paging):
    path: str | None = Field(
        None, max_length=1100, description="only the registered ones that are this absolute path"
    )


@router.get("", response=Page[DatasetOut])
def list_datasets(request: ApiRequest, asked: Query[DatasetQuery]) -> Page[DatasetOut]:
    """All registered datasets, which everyone who is signed in may use, and those that the caller pushed."""
    rows = _rows(request)
    if asked.path is not None:
        rows = rows.filter(pk__in=[row.pk for row in rows.registered() if _is_at(row, asked.path)])
    return page(Page[DatasetOut], request, rows, asked, show=show_dataset)


def _is_at(dataset: Dataset, path: str) -> bool:
    return os.path.realpath(datasets.root_of(dataset) / dataset.path) == os.path.normpath(path)


@router.post("", response={201: DatasetOut})
def register_dataset(request: ApiRequest, body: DatasetIn) -> DatasetOut:
    """Register a file or folder under one of the server's dataset roots, by root and path or by its absolute path."""
    may_add_root = request.user.is_staff and request.token_scope == Scope.ADMIN
    return show_dataset(datasets.register(request.user, **body.model_dump(), may_add_root=may_add_root))


@router.get("/{path:name}", response=DatasetOut)
def get_dataset(request: ApiRequest, name: str) -> DatasetOut:
    """One dataset by name@version, or the newest version by name alone; person/name for what that person pushed."""
    return show_dataset(_find(request, name).first() or _nothing(name))


@router.delete("/{path:name}", response={204: None})
def remove_dataset(request: ApiRequest, name: str) -> HttpResponse:
    """Remove a version, or by name alone all versions: the files of pushed data, or only the name of registered data."""
    rows = list(_find(request, name)) or [_nothing(name)]
    for dataset in rows:
        shelves.check_removal(request.user, dataset)
    for dataset in rows:
        shelves.remove(dataset)
    return HttpResponse(status=204)


def _find(request: ApiRequest, name: str) -> QuerySet[Dataset]:
    if not DATASET_REFERENCE.fullmatch(name):
        raise NotFound(Sentence("There is no dataset {name!r}.", name=name[:80]))
    rows, version = datasets.named(name, request.user), datasets.split_reference(name)[2]
    return rows.filter(version=version) if version else rows


def _nothing(name: str) -> NoReturn:
    raise NotFound(Sentence("There is no dataset {name!r}.", name=name))


def show_dataset(dataset: Dataset) -> DatasetOut:
    return DatasetOut(
        name=dataset.name,
        version=dataset.version,
        reference=dataset.reference,
        root=dataset.root_id or "",
        path="" if dataset.is_pushed else dataset.path,
        description=dataset.description,
        sha256=dataset.sha256 or None,
        size_bytes=dataset.size_bytes,
        owner=dataset.owner.username,
        created_at=dataset.created_at,
        available=is_available(dataset),
        pushed=dataset.is_pushed,
    )


def _rows(request: ApiRequest) -> DatasetQuerySet:
    return Dataset.objects.visible_to(request.user).select_related("root", "owner")


def is_available(dataset: Dataset) -> bool:
    """Whether the dataset's files exist now."""
    try:
        datasets.checked_path(dataset)
    except OrchestratorError:
        return False
    return True
