"""Makes models of checkpoints: copies of the files as a pushed dataset, with where they came from."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction

from orchestrator.exceptions import Conflict, NotFound, Sentence
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import checkpoints, datasets, lifecycle, pushing, shelves
from orchestrator.models import Checkpoint, Dataset, Job, ModelVersion
from orchestrator.people import agents
from orchestrator.store.checkpoints.manifest import (
    MANIFEST,
    CheckpointFile,
    Generation,
    NotVerified,
    hash_file,
)
from orchestrator.store.files.durable import copy_bytes
from orchestrator.store.files.listing import FoundFile
from orchestrator.store.files.untrusted import open_beneath
from orchestrator.store.metrics import series

MOST_VALUES = 100
MOST_HASHED_BYTES = 32 << 20  # that a page reads again each time
MOST_SEARCHED = 5_000  # newest jobs, for those that read a model
_FINE = 5_000  # buckets of a series, the last of which ends at the step


def promote(
    user: User,
    job: Job,
    *,
    name: str,
    checkpoint: str | None = None,
    version: str | None = None,
    description: str = "",
) -> ModelVersion:
    """Make a model of a job's checkpoint, for a person who may see the job.

    The same files make no second version of the same name.

    Args:
        checkpoint: its step or name; None is the newest.
        version: None is the next number.

    Raises:
        NotFound: there is no such checkpoint, or it is no longer on disk.
        NotVerified: its files are damaged.
        Conflict: the name is a registered dataset's, or the version has other files.
        TooLarge: beyond this person's share of the disk.
        Malformed: a name or version of the wrong form.
    """
    description = datasets.check_names(name, version or "1", description)
    if Dataset.objects.registered().filter(name=name).exists():
        raise Conflict(
            Sentence("{name} is a dataset that is registered for everybody; choose another name.", name=name)
        )
    row = _chosen(job, checkpoint)
    generation = checkpoints.on_disk(row)
    listed = sorted(_kept(user, generation))
    with shelves.alone(shelves.shelf_of(user)), transaction.atomic():
        dataset = pushing.keep(
            user,
            name,
            version,
            description,
            [(path, sha256) for path, sha256, _ in listed],
            sum(size_bytes for _, _, size_bytes in listed),
            is_file=len(listed) == 1,
        )
        made, is_new = ModelVersion.objects.get_or_create(
            dataset=dataset,
            defaults={
                "job": job,
                "attempt_number": row.attempt_number,
                "checkpoint": row.name,
                "step": row.step,
                "values": _values_at(job, row.step),
            },
        )
        if is_new:
            became = fact(Happened.MADE_MODEL, model=dataset.reference, name=row.name, step=row.step)
            lifecycle.remark(job, became, actor=agents.name_of(user))
    return made


def find(reference: str, user: User) -> ModelVersion:
    """The model ``name@version``, or the newest version of ``name``; ``person/name`` of another person.

    Raises:
        NotFound: this person may see no such model.
    """
    rows = datasets.named(reference, user).filter(model__isnull=False)
    version = datasets.split_reference(reference)[2]
    dataset = (rows.filter(version=version) if version else rows).first()
    if dataset is None:
        raise NotFound(
            Sentence("There is no model {reference!r}, or you may not see it.", reference=reference[:120])
        )
    return ModelVersion.objects.select_related("dataset__owner", "job").get(dataset=dataset)


def folder_of(model: ModelVersion) -> Path:
    """The folder of a version's files, also where the dataset is a single one.

    Raises:
        Impossible, Unavailable, Malformed: the files are not there, or cannot be read.
    """
    path = datasets.checked_path(model.dataset)
    return path if path.is_dir() else path.parent


def is_whole(model: ModelVersion, files: Sequence[FoundFile]) -> bool:
    """Whether the files are those that were kept: by their size, and by their content up to ``MOST_HASHED_BYTES``.

    Args:
        files: all files in the folder of the version.
    """
    size_bytes = sum(each.status.st_size for each in files)
    if size_bytes != (model.dataset.size_bytes or 0):
        return False
    if size_bytes > MOST_HASHED_BYTES:
        return True
    folder = folder_of(model)
    sums = []
    for each in sorted(files, key=lambda file: file.path):
        file = open_beneath(folder, each.path)
        try:
            sums.append((each.path, hash_file(file)))
        finally:
            os.close(file)
    return pushing.digest_of(sums) == model.dataset.sha256


def readers_of(
    models: Sequence[ModelVersion], user: User, most: int, *, recipes: bool = True
) -> dict[int, list[Job]]:
    """By each model's key, the newest jobs that read it and that this person may see, with those of recipes or without.

    A job keeps the name that it was submitted with, so one that named no version counts for all of them.
    """
    found: dict[int, list[Job]] = {model.pk: [] for model in models}
    by_name: dict[str, list[int]] = defaultdict(list)
    for model in models:
        dataset = model.dataset
        for name in (dataset.name, f"{dataset.name}@{dataset.version}"):
            for reference in (name, f"{dataset.owner.username}/{name}"):
                by_name[reference].append(model.pk)
    visible = Job.objects.visible_to(user).order_by("-pk").only("id", "name", "spec_fields", "owner_id")
    if not recipes:
        visible = visible.filter(recipe=None)
    for job in visible[:MOST_SEARCHED] if models else ():
        for reference in job.spec_fields.get("datasets") or []:
            for key in by_name.get(reference, ()):
                if len(found[key]) < most:
                    found[key].append(job)
    return found


def _chosen(job: Job, checkpoint: str | None) -> Checkpoint:
    if checkpoint:
        return checkpoints.find(job, checkpoint)
    newest = Checkpoint.objects.filter(job=job).order_by("-created_at", "-pk").first()
    if newest is None:
        raise NotFound(
            Sentence(
                "{job} ({short_id}) has no checkpoint to make a model of.",
                job=job.name,
                short_id=job.short_id,
            )
        )
    return newest


def _kept(user: User, generation: Generation) -> list[tuple[str, str, int]]:
    """Put the files of a checkpoint on a person's shelf: path in the model, SHA-256 and size of each."""
    shelf = shelves.shelf_of(user)
    wanted = {file.sha256: file for file in generation.files if not (shelf.contents / file.sha256).is_file()}
    shelves.check_room(user, shelf, sum(file.size_bytes for file in wanted.values()))
    shelf.contents.mkdir(parents=True, exist_ok=True)
    for file in wanted.values():
        _copy(generation, file, shelf.contents)
    paths = _paths([file.path for file in generation.files])
    found = [(paths[file.path], file.sha256, file.size_bytes) for file in generation.files]
    if generation.source == "library":  # the library reads a checkpoint by its manifest
        data = (generation.folder / MANIFEST).read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        (shelf.contents / sha256).write_bytes(data)
        found.append((MANIFEST, sha256, len(data)))
    return found


def _copy(generation: Generation, file: CheckpointFile, contents: Path) -> None:
    """Copy one file under its checksum; what the manifest does not describe is never there under that name."""
    part = contents / f".{os.getpid()}-{file.sha256}.part"
    try:
        source = open_beneath(generation.folder, file.kept)
    except OSError as error:
        raise NotVerified(
            Sentence(
                "{generation} is damaged: {path} cannot be read ({strerror}).",
                generation=generation.name,
                path=file.path,
                strerror=error.strerror,
            )
        ) from error
    try:
        target = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o444)
        try:
            copy_bytes(source, target)
            os.lseek(target, 0, os.SEEK_SET)
            if hash_file(target) != file.sha256:
                raise NotVerified(
                    Sentence(
                        "{generation} is damaged: {path} is not what was kept.",
                        generation=generation.name,
                        path=file.path,
                    )
                )
            os.fsync(target)
        finally:
            os.close(target)
        part.replace(contents / file.sha256)
    finally:
        os.close(source)
        part.unlink(missing_ok=True)


def _paths(paths: Sequence[str]) -> dict[str, str]:
    """The path in the model of each file of the job's folder: what follows the folders that all have in common."""
    parents = {str(PurePosixPath(path).parent) for path in paths}
    common = os.path.commonpath(parents)
    return {path: str(PurePosixPath(path).relative_to(common)) for path in paths}


def _values_at(job: Job, step: int | None) -> dict[str, float]:
    """The last value of each metric up to a step, but for speed, which depends on the machine.

    Values that are not finite, which JSON cannot hold, are left out. Of a series with more than ``_FINE`` points it is the
    mean of the last few.
    """
    folder = settings.HOME.job(job.pk).metrics
    if not job.metric_seq:
        return {}
    found = series.read_series(folder, None, "step", None, step, _FINE, until_seq=job.metric_seq)
    last = {
        name: float(each.y[-1]) for name, each in found.items() if len(each.y) and not name.endswith("_per_s")
    }
    return {name: value for name, value in list(last.items())[:MOST_VALUES] if abs(value) < float("inf")}
