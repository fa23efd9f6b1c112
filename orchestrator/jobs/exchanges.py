"""The folders through which the jobs of a federation talk: each site sees its own folder, the server sees all of them."""

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from django.conf import settings

from orchestrator.models import FEDERATION_VARIABLE, FederationMember, Job
from orchestrator.store.files.durable import write_durably
from orchestrator.store.files.untrusted import remove_tree

SITES, TOLD = "sites", "told"


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one job of a federation sees of it."""

    root: Path
    writable: tuple[Path, ...]
    read_only: tuple[Path, ...] = ()


def root_of(federation: UUID) -> Path:
    root: Path = settings.HOME.federations / str(federation)
    return root


def make(federation: UUID, sites: int) -> None:
    """Make the folders of all sites; repeating this is harmless."""
    root = root_of(federation)
    (root / TOLD).mkdir(parents=True, exist_ok=True)
    for number in range(sites):
        (root / SITES / str(number)).mkdir(parents=True, exist_ok=True)


def of_job(job: Job) -> Exchange | None:
    """The folders of a job of a federation; None for other jobs."""
    if FEDERATION_VARIABLE not in job.spec.env:
        return None
    member = FederationMember.objects.filter(job=job).first()
    if member is None:
        return None
    root = root_of(member.federation_id)
    if member.number is None:
        return Exchange(root, (root / SITES,), (root / TOLD,))
    return Exchange(root, (root / SITES / str(member.number),))


def variables(exchange: Exchange | None) -> dict[str, str]:
    """The variable by which the program finds the folders."""
    return {} if exchange is None else {FEDERATION_VARIABLE: str(exchange.root)}


def tell_ended(federation: UUID, number: int, why: str) -> None:
    """Tell the server's job that the job of a site has ended; repeating this is harmless."""
    path = root_of(federation) / TOLD / str(number)
    if path.parent.is_dir() and not path.exists():
        write_durably(path, why.encode())


def told_of(federation: UUID) -> set[int]:
    """The sites that reported their end."""
    folder = root_of(federation) / TOLD
    return {int(each.name) for each in folder.iterdir() if each.name.isdigit()} if folder.is_dir() else set()


def why_told(federation: UUID, number: int) -> str:
    """What a site reported of its end; empty: nothing yet."""
    path = root_of(federation) / TOLD / str(number)
    return path.read_text() if path.is_file() else ""


def remove(federation: UUID) -> None:
    """Remove the folders; the jobs that wrote there have ended."""
    remove_tree(root_of(federation))
