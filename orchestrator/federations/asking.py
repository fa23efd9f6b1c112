"""What a person asks of a federation, as JSON, and the words that its programs get."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, model_validator

from orchestrator.exceptions import Malformed, Sentence
from orchestrator.recipes.asking import Function, Number, Reference
from orchestrator.spec.field_types import Name
from orchestrator.sweeps.asking import validated

LEAST_SITES, MOST_SITES = 3, 64
Sites = Annotated[StrictInt, Field(ge=0, le=MOST_SITES)]
WORDS: Final[Mapping[str, str]] = {  # options of the program that server and sites get
    "model": "--model",
    "rounds": "--rounds",
    "epochs": "--epochs",
    "batch_size": "--batch-size",
    "learning_rate": "--learning-rate",
    "proximal": "--proximal",
    "clip": "--clip",
    "noise": "--noise",
    "delta": "--delta",
    "patience_s": "--patience-s",
    "seed": "--seed",
}


class FederationSpec(BaseModel):
    """A federated training as people write it; the code comes with the job, as in a submit."""

    model_config = ConfigDict(extra="forbid")

    name: Name | None = Field(None, description="what people call it")
    job: dict[str, Any] = Field(
        default_factory=dict,
        description="the fields of every site's job: gpus, datasets, with_packages, pool ...",
    )
    sites: Sites | None = Field(
        None, description="how many are jobs here; or give site_datasets. With remote_sites three or more"
    )
    remote_sites: Sites = Field(
        0,
        description="how many are at other Berths, which join by invitations; the first round waits for them",
    )
    site_datasets: list[Reference] = Field(
        default_factory=list,
        max_length=MOST_SITES,
        description="the data of each site, which no other one reads",
    )
    model: Function = Field(description="builds the untrained model")
    data: Function | None = Field(
        None, description="of (site, sites, path); returns a site's data; default: site_data, same file"
    )
    evaluate_on: Function | None = Field(None, description="returns the data that the server measures with")
    begin_with: Reference | None = Field(
        None, description="a model whose weights the first round begins with"
    )
    result: StrictStr | None = Field(None, max_length=64, description="name of the model that comes of it")
    rounds: Annotated[StrictInt, Field(ge=1, le=100_000)] = Field(20, description="of training and summing")
    epochs: Annotated[StrictInt, Field(ge=1, le=10_000)] = Field(1, description="of a site in a round")
    batch_size: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = Field(32, description="of a site")
    learning_rate: Annotated[Number, Field(gt=0, le=100)] = Field(0.05, description="of a site")
    proximal: Annotated[Number, Field(ge=0, le=1e6)] = Field(
        0.0, description="above 0 is FedProx; 0 is FedAvg"
    )
    clip: Annotated[Number, Field(gt=0)] | None = Field(
        None, description="privacy: largest norm of a site's update"
    )
    noise: Annotated[Number, Field(gt=0)] | None = Field(
        None, description="privacy: noise on the sum, in units of clip"
    )
    delta: Annotated[Number, Field(gt=0, lt=1)] = Field(
        1e-5, description="chance with which privacy may fail"
    )
    patience_s: Annotated[Number, Field(gt=0, le=30 * 86400)] = Field(
        600.0, description="longest time that a site may take for one answer"
    )
    seed: Annotated[StrictInt, Field(ge=0, lt=2**31)] = Field(0, description="of the first weights")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.sites is None) == (not self.site_datasets):
            raise ValueError("sites: give sites, or site_datasets with one reference for each site")
        if not LEAST_SITES <= self.count <= MOST_SITES:
            name = "site_datasets" if self.site_datasets else "sites"
            raise ValueError(
                Sentence(
                    "{name}: there must be {least} to {most} sites in all, remote_sites included; "
                    "with two, each could read the other's update from the sum",
                    name=name,
                    least=LEAST_SITES,
                    most=MOST_SITES,
                )
            )
        if (self.clip is None) != (self.noise is None):
            raise ValueError("clip: privacy needs both clip and noise")
        return self

    @property
    def count(self) -> int:
        """All sites, here and at other Berths."""
        return self.local_count + self.remote_sites

    @property
    def local_count(self) -> int:
        """The sites that are jobs here."""
        return self.sites if self.sites is not None else len(self.site_datasets)

    @property
    def data_function(self) -> str:
        return self.data or self.model.partition(":")[0]

    def words(self) -> Iterator[str]:
        """The arguments that all programs of the federation get."""
        yield f"--sites={self.count}"
        yield f"--data={self.data_function}"
        for name, word in WORDS.items():
            if (value := getattr(self, name)) is not None:
                yield f"{word}={value}"


def parse(data: Any) -> FederationSpec:
    """Read a federation from JSON.

    Raises:
        Malformed: ``fields`` holds the messages by field.
    """
    if not isinstance(data, Mapping):
        raise Malformed("A federation is a JSON object with model, sites and job.")
    return validated(FederationSpec, data, "federation")
