"""What a person asks of a service, as JSON, with everything that can be checked without the database."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, StrictStr, model_validator

from orchestrator.exceptions import Malformed, Sentence
from orchestrator.sweeps.asking import validated

MOST_REPLICAS = 64
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?")
_PATH = re.compile(r"/[!-\[\]-~]*")


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("is part of an address: small letters, digits and hyphens inside, at most 64")
    return text


def _path(text: str) -> str:
    if text and not _PATH.fullmatch(text):
        raise ValueError("is a path such as /health, with escapes for other signs")
    return text


Replicas = Annotated[StrictInt, Field(ge=0, le=MOST_REPLICAS)]
Seconds = Annotated[float, Field(gt=0, le=30 * 86400, allow_inf_nan=False)]


class Rules(BaseModel):
    """By which rules replicas come and go, and requests are served."""

    min_replicas: Replicas = Field(0, description="replicas that run also without requests")
    max_replicas: Annotated[StrictInt, Field(ge=1, le=MOST_REPLICAS)] = Field(
        1, description="replicas at most"
    )
    idle_s: Seconds = Field(600, description="without a request, until only min_replicas are left")
    deadline_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = Field(
        30, description="within which a request is answered that names no deadline of its own"
    )
    parallel: Annotated[StrictInt, Field(ge=1, le=1000)] = Field(
        1, description="requests at once in one replica"
    )
    most_waiting: Annotated[StrictInt, Field(ge=1, le=10_000)] = Field(
        100, description="requests that may wait for a replica"
    )
    health_path: Annotated[StrictStr, Field(max_length=500), AfterValidator(_path)] = Field(
        "",
        description="path that a replica answers with 2xx once it is ready; empty: once it takes connections",
    )


class ServiceSpec(Rules):
    """A service as people write it; the code comes with the job, as in a submit."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[StrictStr, AfterValidator(_name)] = Field(description="part of its address: /serve/NAME/")
    job: dict[str, Any] = Field(
        description="the fields of every replica's job: command, gpus, environment ..."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_replicas(self.min_replicas, self.max_replicas)
        return self


class ServiceChanges(BaseModel):
    """What can change while a service runs; a new job or code replaces its replicas one by one."""

    model_config = ConfigDict(extra="forbid")

    job: dict[str, Any] | None = Field(
        None, description="all fields of the job; others than these are forgotten"
    )
    min_replicas: Replicas | None = Field(None, description="replicas that run also without requests")
    max_replicas: Annotated[StrictInt, Field(ge=1, le=MOST_REPLICAS)] | None = Field(
        None, description="replicas at most"
    )
    idle_s: Seconds | None = Field(None, description="without a request, until only min_replicas are left")
    deadline_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] | None = Field(
        None, description="within which a request is answered that names no deadline of its own"
    )
    parallel: Annotated[StrictInt, Field(ge=1, le=1000)] | None = Field(
        None, description="requests at once in one replica"
    )
    most_waiting: Annotated[StrictInt, Field(ge=1, le=10_000)] | None = Field(
        None, description="requests that may wait for a replica"
    )
    health_path: Annotated[StrictStr, Field(max_length=500), AfterValidator(_path)] | None = Field(
        None, description="path that a replica answers with 2xx once it is ready"
    )


def check_replicas(least: int, most: int) -> None:
    """Check that there can be as many as there should be at least.

    Raises:
        ValueError: the least is more than the most.
    """
    if least > most:
        raise ValueError(
            Sentence(
                "min_replicas: {least} is more than max_replicas, which is {most}", least=least, most=most
            )
        )


def parse(data: Any) -> ServiceSpec:
    """Read a service from JSON.

    Raises:
        Malformed: ``fields`` holds the messages by field.
    """
    if not isinstance(data, Mapping):
        raise Malformed("A service is a JSON object with name and job.")
    return validated(ServiceSpec, data, "service")


def parse_changes(data: Any) -> ServiceChanges:
    """Read what is to change.

    Raises:
        Malformed: as above, or nothing is named.
    """
    if not isinstance(data, Mapping) or not data:
        raise Malformed(
            Sentence(
                "Nothing to change: give one of {model_fields}.",
                model_fields=", ".join(ServiceChanges.model_fields),
            )
        )
    return validated(ServiceChanges, data, "service")
