"""Packages that a job asks for: requirements as people write them, and the files that list them."""

from typing import Annotated

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictStr, field_validator

from orchestrator.exceptions import Sentence
from orchestrator.spec.plain_text import why_unwritable

LARGEST_FILES_BYTES = 4 * 1024**2  # the lock of a large project has half a megabyte
MOST_FILES = 20


def read_requirement(text: str) -> Requirement:
    """Read one requirement, such as ``datasets<4``.

    Raises:
        ValueError: what it should look like.
    """
    try:
        return Requirement(text)
    except InvalidRequirement:
        raise ValueError(
            Sentence(
                "{text!r} is not a requirement; write a name with its versions, such as datasets or datasets>=3,<4",
                text=text[:80],
            )
        ) from None


def _package(text: str) -> str:
    if problem := why_unwritable(text):
        raise ValueError(problem)
    read_requirement(text)
    return text.strip()


Package = Annotated[StrictStr, AfterValidator(_package), Field(min_length=1, max_length=1000)]


class EnvironmentFiles(BaseModel):
    """Files that list packages, beside the code: their texts by name; the first is the one that counts."""

    model_config = ConfigDict(extra="forbid")

    files: dict[Annotated[StrictStr, Field(min_length=1, max_length=200)], StrictStr] = Field(
        min_length=1, max_length=MOST_FILES
    )
    found: bool = Field(False, description="lay beside the code, and nobody named it")

    @field_validator("files")
    @classmethod
    def _small_and_plain(cls, files: dict[str, str]) -> dict[str, str]:
        for at, name in enumerate(files):
            parts = name.split("/")
            # Only what another list refers to may lie in a folder below it.
            is_plain = (at > 0 or len(parts) == 1) and all(
                part and not part.startswith(".") for part in parts
            )
            if not is_plain or "\\" in name or why_unwritable(name):
                raise ValueError(
                    Sentence(
                        "{name!r} is not a file's name; give one such as requirements.txt", name=name[:80]
                    )
                )
        if sum(len(text.encode(errors="replace")) for text in files.values()) > LARGEST_FILES_BYTES:
            raise ValueError(
                Sentence(
                    "the files have more than {largest_files_bytes:,} bytes",
                    largest_files_bytes=LARGEST_FILES_BYTES,
                )
            )
        return files

    @property
    def name(self) -> str:
        """The file that counts; others are what it refers to."""
        return next(iter(self.files))
