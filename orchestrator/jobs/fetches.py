"""Which data of a job has to be fetched: a row for each address, shared by all who may."""

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Q
from django.utils import timezone

from orchestrator.exceptions import Impossible, Sentence
from orchestrator.live import wakeups
from orchestrator.models import Fetch, FetchState, Job
from orchestrator.people import secrets
from orchestrator.spec.job_spec import JobSpec
from orchestrator.spec.remote_data import RemoteData, looks_remote, read_remote

# An equal request of these hours gets what was fetched then; a later one asks whether anything changed.
FRESH_FOR = timedelta(hours=24)
# The secrets of a person that fetching uses, by scheme.  No job has to list them.
CREDENTIALS: Mapping[str, tuple[str, ...]] = {
    "hf": ("HF_TOKEN",),
    "s3": (
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
        *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"),
    ),
    "gs": ("GOOGLE_CREDENTIALS",),
}
_GOOGLE = "STORAGE_EMULATOR_HOST"  # another service that speaks as Google's storage does
_ENDPOINT = "AWS_ENDPOINT_URL"  # where the bucket is, which is no secret


def remote_data(spec: JobSpec) -> list[RemoteData]:
    """The data that a job names by its address."""
    return [read_remote(text) for text in spec.datasets if looks_remote(text)]


def check(remote: RemoteData) -> None:
    """Refuse, before anything is fetched, what never will be.

    Raises:
        Impossible: an address without encryption or checksum.
    """
    if remote.scheme == "http" and not remote.sha256 and remote.host not in settings.ENVIRONMENT.data_allow:
        sentence = Sentence(
            "{address} is not encrypted, so anybody on the way could change the data. Write https://, or add its checksum: #sha256=...",
            address=remote.address[:200],
        )
        raise Impossible(sentence, fields={"datasets": [sentence]})


def credentials(owner: AbstractBaseUser, scheme: str) -> dict[str, str]:
    """The secrets of a person for a scheme; empty without any.

    Raises:
        SecretLost: one cannot be decrypted.
    """
    names = CREDENTIALS.get(scheme, ())
    lacking = set(secrets.missing(owner, names))
    return secrets.reveal(owner, [name for name in names if name not in lacking])


def ask(spec: JobSpec, jobs: Sequence[Job]) -> None:
    """Let the jobs of one submit wait for the data they name, inside the caller's transaction."""
    for remote in remote_data(spec):
        attach(row_for(remote, jobs[0].owner, timezone.now()), jobs)


def ask_again(job: Job, parent: Job) -> None:
    """As ``ask``, for a clone: it gets the very data of the job that it repeats."""
    of_parent = {_named(row): row for row in parent.fetches.order_by("pk")}
    for remote in remote_data(job.spec):
        row = of_parent.get(_named(remote))
        if row is None or row.state == FetchState.FAILED:
            row = row_for(remote, job.owner, timezone.now())
        attach(row, [job])


def attach(row: Fetch, jobs: Iterable[Job]) -> None:
    """Let jobs wait for a fetch, and have it done if it is not, or if its files were removed."""
    row.jobs.add(*jobs)
    if row.state == FetchState.READY and not settings.HOME.fetched.tree(row.key).is_dir():
        row.state = FetchState.WAITING
        row.save(update_fields=["state"])
    if row.state != FetchState.READY:
        wakeups.fetch(row.pk)


def row_for(
    remote: RemoteData, owner: AbstractBaseUser, now: datetime, *, but: Collection[int] = ()
) -> Fetch:
    """The row of an address: an equal one that this person may use and that is as good as new, else another.

    Args:
        but: the numbers of rows that they may not use.
    """
    digest = _digest(remote, owner)
    rows = Fetch.objects.filter(address_sha256=digest).exclude(state=FetchState.FAILED).exclude(pk__in=but)
    # Whether others may use a row is known once its source was asked; until then all hope for it.
    rows = rows.filter(Q(is_private=False) | Q(is_private=None) | Q(owner_id=owner.pk))
    if not (remote.sha256 or _names_commit(remote)):
        rows = rows.filter(created_at__gt=now - FRESH_FOR)
    return rows.first() or Fetch.objects.create(
        address_sha256=digest,
        address=remote.address,
        sha256=remote.sha256,
        unpack=remote.unpack,
        owner_id=owner.pk,
        created_at=now,
    )


def _digest(remote: RemoteData, owner: AbstractBaseUser) -> str:
    endpoint = credentials(owner, "s3").get(_ENDPOINT, "") if remote.scheme == "s3" else ""
    facts = [remote.address, remote.sha256, endpoint, *(["unpack"] if remote.unpack else [])]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _named(data: RemoteData | Fetch) -> tuple[str, str, bool]:
    """What tells the data of one job apart."""
    return data.address, data.sha256, data.unpack


def _names_commit(remote: RemoteData) -> bool:
    """Whether a repository's address has a commit, whose files never change."""
    revision = remote.address.partition("@")[2].partition("/")[0] if remote.scheme == "hf" else ""
    return len(revision) == 40 and set(revision) <= set("0123456789abcdef")


def environment(known: Mapping[str, str], variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of the fetching program: where services are, by this person or the operator, and the proxies."""
    passed = (
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "HF_ENDPOINT",
        _ENDPOINT,
        _GOOGLE,
        *PROXIES,
    )
    named = {name: variables[name] for name in passed if name in variables}
    return {**named, **({_ENDPOINT: known[_ENDPOINT]} if known.get(_ENDPOINT) else {})}


PROXIES = tuple(
    name
    for upper in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
    for name in (upper, upper.lower())
)


def allowed_hosts(variables: Mapping[str, str] = os.environ) -> list[str]:
    """The hosts inside the network that may be reached: those that the operator named, in whatever way."""
    named = [variables.get(name, "") for name in ("HF_ENDPOINT", _ENDPOINT, _GOOGLE, *PROXIES[:6])]
    hosts = [urlsplit(text if "://" in text else f"//{text}").hostname for text in named if text]
    return [*settings.ENVIRONMENT.data_allow, *filter(None, hosts)]


def paths_of(job: Job) -> dict[str, Path]:
    """Where the data is that a job names by its address, by the names that it gives; for immediate use.

    Raises:
        FileNotFoundError: something is no longer there; it is fetched again.
    """
    wanted = remote_data(job.spec)
    rows = {_named(row): row for row in job.fetches.order_by("pk")} if wanted else {}
    return {remote.name: _path_of(rows.get(_named(remote)), remote, job) for remote in wanted}


def _path_of(row: Fetch | None, remote: RemoteData, job: Job) -> Path:
    if row is None:
        attach(row_for(remote, job.owner, timezone.now()), [job])
    elif (path := settings.HOME.fetched.tree(row.key) / row.path).exists() and row.key:
        os.utime(settings.HOME.fetched.tree(row.key))  # used now
        return path
    else:
        Fetch.objects.filter(pk=row.pk, state=FetchState.READY).update(state=FetchState.WAITING)
        wakeups.fetch(row.pk)
    raise FileNotFoundError(2, f"the data from {remote.address.partition('?')[0]} is no longer there")
