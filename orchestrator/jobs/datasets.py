"""Datasets: registered under a root that an operator allows, and checked again at each use."""

import os
import re
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils.text import slugify

from orchestrator.exceptions import Conflict, Forbidden, Impossible, Malformed, Sentence, Unavailable
from orchestrator.jobs.dataset_files import measure, refusals_told, refuse_kernel_files, why_unreadable
from orchestrator.models import Dataset, DatasetRoot
from orchestrator.models.datasets import DatasetQuerySet
from orchestrator.people.rights import Someone
from orchestrator.spec.data_names import DATASET_REFERENCE, MODEL_PREFIX
from orchestrator.spec.plain_text import clean_text


def register(
    user: User,
    *,
    name: str,
    path: str,
    root: str | None = None,
    version: str = "1",
    description: str = "",
    may_add_root: bool = False,
) -> Dataset:
    """Register a file or folder under a root as ``name@version``.

    Small data gets its size and checksum now; for large data they stay empty.

    Args:
        path: relative to the root; without a root the absolute path, which must lie under a root unless the
            caller ``may_add_root``.

    Raises:
        Malformed: a name, version or path of the wrong form, or a path that leaves the root.
        Impossible: no such root or file, a file that Berth may not read, or a file of the kernel.
        Conflict: this version is registered already.
        Forbidden: a name of another person, or a new root by somebody who may not add one.
    """
    description = check_names(name, version, description)
    _check_owner(user, name)
    try:
        with refusals_told(), transaction.atomic():  # a refused dataset leaves no root behind
            if root is None:
                found_root, path = _root_for(path, may_add_root=may_add_root)
            else:
                found_root = _find_root(root)
            dataset = Dataset(
                name=name,
                version=version,
                root=found_root,
                path=_relative(path),
                description=description,
                owner=user,
            )
            dataset.size_bytes, dataset.sha256 = measure(checked_path(dataset))
            dataset.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict(
            Sentence(
                "The dataset {name}@{version} is registered already; choose another version.",
                name=name,
                version=version,
            )
        ) from error
    return dataset


def check_names(name: str, version: str, description: str) -> str:
    """Check what people call a dataset; returns the description as it is stored.

    Raises:
        Malformed: with the field.
    """
    _check_reference(name, version)
    return _check_description(description)


def _find_root(name: str) -> DatasetRoot:
    root = DatasetRoot.objects.filter(pk=name).first() if name.isascii() and name.isprintable() else None
    if root is None:
        raise _impossible(
            "root",
            Sentence(
                "There is no dataset root {name!r}; {known_roots}", name=name[:64], known_roots=_known_roots()
            ),
        )
    return root


def _known_roots() -> Sentence:
    known = ", ".join(DatasetRoot.objects.values_list("name", flat=True)) or Sentence("none yet")
    return Sentence(
        "known: {known}. An admin adds roots on the admin pages, or by registering an absolute path without a root.",
        known=known,
    )


def _root_for(path: str, *, may_add_root: bool) -> tuple[DatasetRoot, str]:
    """Find the root that contains an absolute path, and the path below it.

    Without such a root the folder itself becomes a root, or the folder of the file. Members may register what is
    below a root, so the new root gives access to nothing else.
    """
    if not path.startswith("/"):
        raise _malformed(
            "root",
            Sentence("Name the root that the path lies under; {known_roots}", known_roots=_known_roots()),
        )
    if not _can_be_path(path):
        raise _malformed("path", "The path has a character that no path has, or more than 1024 characters.")
    real = Path(os.path.realpath(path))
    for root in DatasetRoot.objects.order_by("-path"):  # the innermost of nested roots
        if real.is_relative_to(folder := Path(os.path.realpath(root.path))):
            return root, str(real.relative_to(folder))
    if not may_add_root:  # before any check of the path: they may not learn what exists there
        sentence = Sentence(
            "This path lies under none of the dataset roots; {known_roots}", known_roots=_known_roots()
        )
        raise Forbidden(sentence, fields={"root": [sentence]})
    if not real.exists():
        raise _impossible(
            "path", Sentence("There is nothing at {path} on this server; check the path.", path=path)
        )
    folder = real if real.is_dir() else real.parent
    check_root(str(folder))
    added = DatasetRoot.objects.create(name=_free_root_name(folder), path=str(folder))
    return added, str(real.relative_to(folder))


def _free_root_name(folder: Path) -> str:
    name = slugify(folder.name)[:56] or "root"
    taken = set(DatasetRoot.objects.filter(pk__startswith=name).values_list("pk", flat=True))
    return next(
        each for each in (name, *(f"{name}-{n}" for n in range(2, len(taken) + 3))) if each not in taken
    )


def check_root(path: str) -> None:
    """Check whether a folder may become a root: every job can read what is below it.

    Raises:
        Malformed: not an absolute path of a folder, or a folder that contains or is inside Berth's own state.
        Impossible: the files are the kernel's.
    """
    folder = Path(path)
    with refusals_told():
        if not folder.is_absolute() or not folder.is_dir():
            raise _malformed("path", "Give the absolute path of a folder of this server that is there.")
        refuse_kernel_files(folder, folder.stat())
    real, home = folder.resolve(), settings.HOME.root.resolve()
    if real.is_relative_to(home) or home.is_relative_to(real):
        raise _malformed(
            "path", "This folder holds Berth's own state, which no job may read; choose another."
        )


def resolve(reference: str, user: Someone) -> Dataset:
    """Find the dataset ``name@version``, or the newest version of ``name``, for a person.

    A name alone means what this person pushed, else what is registered; ``person/name`` what that person pushed.
    ``model:name`` means models only.

    Raises:
        Malformed: the reference has another form.
        Impossible: the dataset is not registered.
    """
    kind = "model" if reference.startswith(MODEL_PREFIX) else "dataset"
    reference = reference.removeprefix(MODEL_PREFIX)
    if not DATASET_REFERENCE.fullmatch(reference):
        sentence = Sentence(
            "{reference!r} is not a dataset; give name or name@version of a registered one.",
            reference=reference[:80],
        )
        raise Malformed(sentence, fields={"datasets": [sentence]})
    rows = named(reference, user)
    if kind == "model":
        rows = rows.filter(model__isnull=False)
    version = split_reference(reference)[2]
    dataset = (rows.filter(version=version) if version else rows).first()
    if dataset is None:
        name = reference.removesuffix(f"@{version}")
        known = ", ".join(f"{name}@{each}" for each in rows.values_list("version", flat=True)[:5])
        raise _impossible(
            "datasets",
            _not_there(kind, reference, known),
        )
    return dataset


def _not_there(kind: str, reference: str, known: str) -> Sentence:
    there = Sentence("there is {versions}", versions=known)
    if kind == "model":
        there = there if known else Sentence("make one of a checkpoint first")
        return Sentence("There is no model {reference!r}; {known}.", reference=reference, known=there)
    there = there if known else Sentence("register it first")
    return Sentence("There is no dataset {reference!r}; {known}.", reference=reference, known=there)


def split_reference(reference: str) -> tuple[str, str, str]:
    """The person, name and version of a reference; empty where it has none."""
    whose, _, rest = reference.rpartition("/")
    name, _, version = rest.partition("@")
    return whose, name, version


def named(reference: str, user: Someone) -> DatasetQuerySet:
    """All versions of what a reference means for a person, newest first."""
    whose, name, _ = split_reference(reference)
    rows = Dataset.objects.visible_to(user).select_related("root", "owner").filter(name=name)
    rows = rows.order_by("-created_at", "-pk")
    if whose:
        return rows.filter(root__isnull=True, owner__username=whose)
    own = rows.pushed_by(user.pk or 0)
    return own if own.exists() else rows.registered()


def root_of(dataset: Dataset) -> Path:
    """The folder that a dataset's path is relative to."""
    return settings.HOME.pushed if dataset.root is None else Path(dataset.root.path)


def check_readable(dataset: Dataset) -> None:
    """Refuse a dataset whose permissions have changed so that Berth, and with it each job, cannot read it.

    One that is not there now is left to the launch: its disk may come back while the job waits.

    Raises:
        Impossible: with the folder that refuses, and what to do.
    """
    if sentence := why_unreadable(Path(os.path.realpath(root_of(dataset) / dataset.path))):
        raise _impossible("datasets", sentence)


def full_name(dataset: Dataset) -> str:
    """Its name with its version."""
    return f"{dataset.name}@{dataset.version}"


def names_in_a_job(chosen: Sequence[Dataset]) -> list[str]:
    """What a job calls its datasets, in variables and placeholders: each by its name, several versions of one by both."""
    often = Counter(each.name for each in chosen)
    return [each.name if often[each.name] == 1 else f"{each.name}@{each.version}" for each in chosen]


def placeholders(paths: Mapping[Dataset, Path]) -> dict[str, str]:
    """What the placeholders of these datasets are filled with: each by its name in the job, and by name and version."""
    values: dict[str, str] = {}
    for name, (dataset, path) in zip(names_in_a_job(list(paths)), paths.items(), strict=True):
        spellings = {full_name(dataset), dataset.reference}
        if name == dataset.name:  # the only version
            spellings |= {name, dataset.reference.removesuffix(f"@{dataset.version}")}
        values |= {f"{kind}:{spelling}": str(path) for spelling in spellings for kind in ("dataset", "model")}
    return values


def variable_of(name: str) -> str:
    """The environment variable that has the dataset's path."""
    return "BERTH_DATASET_" + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def checked_path(dataset: Dataset) -> Path:
    """Resolve a dataset's path, without links, for immediate use; call this at each launch.

    Raises:
        Malformed: the path is outside of its root, for example by a link.
        Impossible: the path does not exist, is neither file nor folder, or is the kernel's.
        Unavailable: the root itself is missing, for example on an unmounted disk.
    """
    root = Path(os.path.realpath(root_of(dataset)))
    if not os.access(root, os.X_OK, effective_ids=True) or not root.is_dir():
        if sentence := why_unreadable(root):
            raise _impossible("path", sentence)
        raise Unavailable(
            Sentence(
                "The folder of dataset root {root_id} is not there now; tell the operator (is a disk unmounted?).",
                root_id=dataset.root_id,
            )
        )
    path = Path(os.path.realpath(root / _relative(dataset.path)))
    if not path.is_relative_to(root):
        raise _malformed(
            "path",
            Sentence(
                "The dataset {reference} leads out of its root {root_id}.",
                reference=dataset.reference,
                root_id=dataset.root_id,
            ),
        )
    try:
        status = path.stat()
    except OSError as error:
        if sentence := why_unreadable(path):
            raise _impossible("path", sentence) from error
        raise _impossible(
            "path",
            Sentence(
                "The dataset {reference} is not there: root {root}, path {path}.",
                reference=dataset.reference,
                root=dataset.root_id or Sentence("of pushed data"),
                path=dataset.path,
            ),
        ) from error
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise _impossible(
            "path",
            Sentence("The dataset {reference} is neither a file nor a folder.", reference=dataset.reference),
        )
    refuse_kernel_files(path, status)
    return path


def _relative(path: str) -> str:
    """Normalise a relative path, and refuse one that could leave its root."""
    pure = PurePosixPath(path)
    if (
        not path
        or pure.is_absolute()
        or ".." in pure.parts
        or "://" in path
        or "\\" in path
        or not _can_be_path(path)
    ):
        raise _malformed(
            "path",
            "Give a path relative to the root, without '..', for example digits or text/shakespeare.txt.",
        )
    return str(pure)


def _can_be_path(text: str) -> bool:
    """Whether a text is short enough for a path, without control characters and halves of UTF-16 pairs."""
    return len(text) <= 1024 and not any(ord(each) < 32 or "\ud800" <= each <= "\udfff" for each in text)


def _check_reference(name: str, version: str) -> None:
    for field, value in (("name", name), ("version", version)):
        if "@" in value or "/" in value or not DATASET_REFERENCE.fullmatch(f"{name}@{version}"):
            raise _malformed(
                field,
                "A dataset's name and version have letters, digits, '.', '_' and '-', at most 64 and 32 of them, "
                "and begin with a letter or digit.",
            )


def _check_description(text: str) -> str:
    try:
        text = clean_text(text)
    except ValueError as error:
        raise _malformed("description", Sentence("The description {error}.", error=error)) from error
    if len(text) > 300:
        raise _malformed("description", "The description has more than 300 characters; shorten it.")
    return text


def _check_owner(user: User, name: str) -> None:
    """Refuse a name that another person registered first: a newer version of theirs would replace the data of jobs."""
    first = Dataset.objects.registered().filter(name=name).order_by("pk").select_related("owner").first()
    if first and first.owner_id != user.pk and not user.is_staff:
        raise Forbidden(
            Sentence(
                "The dataset {name} belongs to {username}; choose another name.",
                name=name,
                username=first.owner.username,
            )
        )


def _malformed(field: str, sentence: str) -> Malformed:
    return Malformed(sentence, fields={field: [sentence]})


def _impossible(field: str, sentence: str) -> Impossible:
    return Impossible(sentence, fields={field: [sentence]})
