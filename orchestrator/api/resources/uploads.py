"""Pushing data: what is missing of it, and its parts."""

from typing import Annotated

from django.conf import settings
from django.http import HttpRequest
from ninja import Query, Router
from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.reading import Body
from orchestrator.api.resources.datasets import DatasetOut, show_dataset
from orchestrator.exceptions import Sentence, TooLarge
from orchestrator.jobs import pushing, shelves
from orchestrator.spec.job_spec import GIB

router = Router()
FileIn = tuple[StrictStr, Annotated[StrictInt, Field(ge=0)], StrictStr, StrictStr]


class PushIn(Body):
    """A dataset to be: all of its files."""

    name: StrictStr
    version: StrictStr | None = Field(None, description="null: the next number, if anything changed")
    description: StrictStr = ""
    is_file: StrictBool = Field(False, description="it is its one file, not a folder with that")
    files: list[FileIn] = Field(
        description="of each file path, size in bytes, SHA-256 or an empty text, and without a SHA-256 any text that is "
        "another when the file has changed",
        max_length=pushing.MOST_FILES,
    )


class MissingOut(BaseModel):
    path: str
    key: str = Field(description="where its parts are sent to: PUT /uploads/{key}")
    size_bytes: int
    sent_bytes: int = Field(description="how much of it is here already; go on there")


class PushOut(BaseModel):
    dataset: DatasetOut | None = Field(description="null until all files are here")
    missing: list[MissingOut]
    part_bytes: int = Field(description="the most bytes of one part")


class PartQuery(BaseModel):
    offset: int = Field(ge=0)
    size_bytes: int = Field(ge=0, description="of the whole file")
    sha256: str = Field("", max_length=64, description="of the whole file")
    part_sha256: str = Field("", max_length=64, description="of this part")


class SentPartOut(BaseModel):
    sent_bytes: int = Field(description="how much of the file is here; go on there")


class SpaceOut(BaseModel):
    used_bytes: int = Field(description="equal files count once")
    limit_bytes: int | None = Field(description="null: no limit")


@router.get("", response=SpaceOut)
def get_upload_space(request: ApiRequest) -> SpaceOut:
    """How much the caller has pushed, and may push."""
    return SpaceOut(
        used_bytes=shelves.used_bytes(request.user),
        limit_bytes=settings.ENVIRONMENT.user_data_gib * GIB or None,
    )


@router.post("", response=PushOut)
def push_dataset(request: ApiRequest, body: PushIn) -> PushOut:
    """Make a dataset of files that are here, or say which are missing: send those, then ask again."""
    files = [pushing.PushedFile(*each) for each in body.files]
    dataset, missing = pushing.push(
        request.user,
        name=body.name,
        version=body.version,
        description=body.description,
        files=files,
        is_file=body.is_file,
    )
    shown = [
        MissingOut(
            path=each.file.path,
            key=each.file.key,
            size_bytes=each.file.size_bytes,
            sent_bytes=each.sent_bytes,
        )
        for each in missing
    ]
    return PushOut(
        dataset=None if dataset is None else show_dataset(dataset),
        missing=shown,
        part_bytes=pushing.PART_BYTES,
    )


@router.put("/{key}", response=SentPartOut)
def send_part(request: ApiRequest, key: str, part: Query[PartQuery]) -> SentPartOut:
    """Send a part of a missing file, as the body; may be sent twice."""
    data = _body(request)
    here = pushing.take_part(
        request.user, key, part.offset, part.size_bytes, part.sha256, data, part.part_sha256
    )
    return SentPartOut(sent_bytes=here)


def _body(request: HttpRequest) -> bytes:
    if int(request.META.get("CONTENT_LENGTH") or 0) > pushing.PART_BYTES:
        raise TooLarge(
            Sentence(
                "A part has at most {part_bytes:,} bytes; send a file in several.",
                part_bytes=pushing.PART_BYTES,
            )
        )
    return request.body
