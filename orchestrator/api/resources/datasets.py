"""Dataset references."""

from datetime import datetime

from django.db.models import QuerySet
from ninja import Query, Router
from pydantic import BaseModel, Field, StrictStr

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import Body
from orchestrator.exceptions import NotFound, OrchestratorError
from orchestrator.jobs import datasets
from orchestrator.models import Dataset, Scope
from orchestrator.spec.job_spec import DATASET_REFERENCE

router = Router()


class DatasetOut(BaseModel):
    name: str
    version: str
    reference: str
    root: str
    path: str
    description: str
    sha256: str | None = Field(description="null for data too large to hash at registration")
    size_bytes: int | None
    owner: str
    created_at: datetime
    available: bool = Field(description="the files exist now")


class DatasetIn(Body):
    name: StrictStr
    version: StrictStr = "1"
    root: StrictStr | None = Field(
        None,
        description="null: the path is absolute; if no root contains it, an admin's registration adds one",
    )
    path: StrictStr
    description: StrictStr = ""


@router.get("", response=Page[DatasetOut])
def list_datasets(request: ApiRequest, paging: Query[Paging]) -> Page[DatasetOut]:
    """All registered datasets, newest first; everyone who is signed in may use them."""
    return page(Page[DatasetOut], request, _rows(), paging, show=show_dataset)


@router.post("", response={201: DatasetOut})
def register_dataset(request: ApiRequest, body: DatasetIn) -> DatasetOut:
    """Register a file or folder under one of the server's dataset roots, by root and path or by its absolute path."""
    may_add_root = request.user.is_staff and request.token_scope == Scope.ADMIN
    return show_dataset(datasets.register(request.user, **body.model_dump(), may_add_root=may_add_root))


@router.get("/{name}", response=DatasetOut)
def get_dataset(request: ApiRequest, name: str) -> DatasetOut:
    """One dataset by name@version, or the newest version by name alone."""
    if not DATASET_REFERENCE.fullmatch(name):
        raise NotFound(f"There is no dataset {name[:80]!r}.")
    plain, _, version = name.partition("@")
    rows = _rows().filter(name=plain).order_by("-created_at", "-pk")
    dataset = (rows.filter(version=version) if version else rows).first()
    if dataset is None:
        raise NotFound(f"There is no dataset {name!r}.")
    return show_dataset(dataset)


def show_dataset(dataset: Dataset) -> DatasetOut:
    return DatasetOut(
        name=dataset.name,
        version=dataset.version,
        reference=dataset.reference,
        root=dataset.root_id,
        path=dataset.path,
        description=dataset.description,
        sha256=dataset.sha256 or None,
        size_bytes=dataset.size_bytes,
        owner=dataset.owner.username,
        created_at=dataset.created_at,
        available=is_available(dataset),
    )


def _rows() -> QuerySet[Dataset]:
    return Dataset.objects.select_related("root", "owner")


def is_available(dataset: Dataset) -> bool:
    """Whether the dataset's files exist now."""
    try:
        datasets.checked_path(dataset)
    except OrchestratorError:
        return False
    return True
