"""Takes part in a federation at another Berth: a job here, whose code and data stay here."""

import hashlib
import ipaddress
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from django.contrib.auth.models import User
from pydantic import BaseModel, ConfigDict, Field, StrictStr

from orchestrator.exceptions import Impossible, Malformed, Sentence
from orchestrator.federations.creation import MODULE, NOT_FOR_SITES, stored_site
from orchestrator.federations.invitations import SECRET_FORM
from orchestrator.jobs.submission import intake
from orchestrator.jobs.submission.code import Upload
from orchestrator.models import FINAL_STATES, Job, Pool
from orchestrator.models.pools import Network
from orchestrator.people import secrets
from orchestrator.recipes.asking import Function
from orchestrator.spec.job_spec import JobSpec
from orchestrator.sweeps.asking import validated

PREFIX = "FEDERATION_INVITATION_"  # of the secrets that hold invitations


class JoinSpec(BaseModel):
    """What a person asks who joins; the code comes with the job, as in a submit."""

    model_config = ConfigDict(extra="forbid")

    invitation: Annotated[StrictStr, Field(max_length=2_000)] = Field(
        description="the link that the federation's owner has sent"
    )
    job: dict[str, Any] = Field(
        default_factory=dict, description="the fields of the site's job: gpus, datasets, pool ..."
    )
    model: Function = Field(description="builds the untrained model, the same as the federation's")
    data: Function | None = Field(
        None, description="of (site, sites, path); returns this site's data; default: site_data, same file"
    )


def parse(data: Any) -> JoinSpec:
    """Read a join from JSON.

    Raises:
        Malformed: ``fields`` holds the messages by field.
    """
    if not isinstance(data, dict):
        raise Malformed("To join is a JSON object with invitation, model and job.")
    return validated(JoinSpec, data, "join")


def join(user: User, spec: JoinSpec, *, script: Upload | None = None, bundle: Upload | None = None) -> Job:
    """Submit the job of a site; it says itself what the other Berth answers.

    Raises:
        Malformed, TooLarge: the link, the job or its code cannot be read.
        Impossible, Forbidden: the job could never run here, or not by this person.
    """
    for name in NOT_FOR_SITES:
        if name in spec.job and name != "name":
            raise Malformed(
                Sentence("job: {name} is not for sites.", name=name),
                fields={"job": [Sentence("leave out {name}", name=name)]},
            )
    link = _read_link(spec.invitation)
    fields = {name: value for name, value in spec.job.items() if name != "name"}
    first, sha256 = stored_site(user, fields, spec.model, script, bundle)
    _check_network(first)
    variable = f"{PREFIX}{secret_name(link.fragment)}"
    job = {
        "gpus": 0,
        "name": f"site of {link.hostname}"[:180],
        **spec.job,
        "pool": first.pool,
        "source": {"bundle": sha256},
        "module": MODULE,
        "launcher": "direct",
        "args": [
            "--part=site",
            f"--join={variable}",
            f"--model={spec.model}",
            f"--data={spec.data or spec.model.partition(':')[0]}",
        ],
        "secrets": [*(spec.job.get("secrets") or []), variable],
        "tags": [*(spec.job.get("tags") or []), "federated"],
    }
    forget_ended(user)
    secrets.keep(user, variable, spec.invitation)
    return intake.accept(user, intake.parse_spec(job), uploaded=sha256).job


def secret_name(text: str) -> str:
    """A part of a variable's name that tells invitations apart, and nothing of their secret."""
    return hashlib.sha256(text.encode()).hexdigest()[:8].upper()


def forget_ended(user: User) -> None:
    """Delete the invitations of sites whose jobs have all ended."""
    open_jobs = Job.objects.filter(owner=user).exclude(state__in=FINAL_STATES)
    used = {name for job in open_jobs for name in job.spec.secrets}
    for name in secrets.names_of(user):
        if name.startswith(PREFIX) and name not in used:
            secrets.forget(user, name)


def _check_network(job: JobSpec) -> None:
    """Refuse a pool from which no job reaches another server.

    Raises:
        Impossible: its jobs have no network.
    """
    if Pool.objects.filter(pk=job.pool, network=Network.NONE).exists():
        sentence = Sentence(
            "Jobs of pool {pool} have no network, and a site talks to the federation's server. Choose another pool, or ask an operator to give this one the network.",
            pool=job.pool,
        )
        raise Impossible(sentence, fields={"pool": [sentence]})


def _read_link(text: str) -> SplitResult:
    try:
        link = urlsplit(text.strip())
        host = link.hostname
    except ValueError:
        link, host = urlsplit(""), None
    if link.scheme not in {"http", "https"} or not host or not SECRET_FORM.fullmatch(link.fragment):
        raise _wrong("this is no invitation; it looks like https://berth.example.org/federated#bsite_...")
    if link.scheme == "http" and not _is_here(host):
        raise _wrong(
            Sentence(
                "the link begins with http://, so its secret would cross the network in the open; give {host} HTTPS first",
                host=host,
            )
        )
    return link


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _wrong(message: str) -> Malformed:
    return Malformed(Sentence("invitation: {message}.", message=message), fields={"invitation": [message]})
