"""Datasets: registered under a root that an operator allows, checked again each time one is used."""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils.text import slugify

from orchestrator.exceptions import Conflict, Forbidden, Impossible, Malformed, Unavailable
from orchestrator.jobs.kernel_files import kernel_devices
from orchestrator.models import Dataset, DatasetRoot
from orchestrator.spec.job_spec import DATASET_REFERENCE, clean_text
from orchestrator.store.trees import walk

HASHED_BYTES = 64 * 1024**2  # above this the caller would wait too long for the checksum
COUNTED_FILES = 10_000
_CHUNK_BYTES = 1024**2


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
    """Make ``name@version`` stand for a file or folder under a root.

    Size and checksum are taken now where the data is small; they stay empty for large data.

    Args:
        path: relative to the root; without a root the absolute path, which must lie under a root unless the
            caller ``may_add_root``.

    Raises:
        Malformed: a name, version or path that is not of its form, or a path that leaves the root (B35).
        Impossible: no such root, nothing there, a file that Berth may not read, or one of the kernel's.
        Conflict: this version is registered already.
        Forbidden: another person's name, or a new root by somebody who may not add one.
    """
    _check_reference(name, version)
    description = _check_description(description)
    _check_owner(user, name)
    try:
        with _refusals_told(), transaction.atomic():  # a refused dataset leaves no root behind
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
            f"The dataset {name}@{version} is registered already; choose another version."
        ) from error
    return dataset


def _find_root(name: str) -> DatasetRoot:
    found = DatasetRoot.objects.filter(pk=name).first() if name.isascii() and name.isprintable() else None
    if found is None:
        raise _impossible("root", f"There is no dataset root {name[:64]!r}; {_known_roots()}")
    return found


def _known_roots() -> str:
    known = ", ".join(DatasetRoot.objects.values_list("name", flat=True)) or "none yet"
    return (
        f"known: {known}. An admin adds roots on the admin pages, "
        "or by registering an absolute path without a root."
    )


def _root_for(path: str, *, may_add_root: bool) -> tuple[DatasetRoot, str]:
    """The root that holds an absolute path, and the path under it.

    Where none holds it yet, the folder itself becomes one, or the folder of the file: members may register
    what lies under a root, so it opens no more than was named.
    """
    if not path.startswith("/"):
        raise _malformed("root", f"Name the root that the path lies under; {_known_roots()}")
    if not _can_be_path(path):
        raise _malformed("path", "The path has a character that no path has, or more than 1024 characters.")
    real = Path(os.path.realpath(path))
    for root in DatasetRoot.objects.order_by("-path"):  # of nested ones the innermost
        if real.is_relative_to(folder := Path(os.path.realpath(root.path))):
            return root, str(real.relative_to(folder))
    if not may_add_root:  # before any look at what is there: it is not theirs to know
        sentence = f"This path lies under none of the dataset roots; {_known_roots()}"
        raise Forbidden(sentence, fields={"root": [sentence]})
    if not real.exists():
        raise _impossible("path", f"There is nothing at {path} on this server; check the path.")
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
    """Whether a folder may become a root: what lies under it can be read by every job.

    Raises:
        Malformed: not an absolute path of a folder, or one that holds or lies in Berth's own state.
        Impossible: its files are the kernel's.
    """
    folder = Path(path)
    with _refusals_told():
        if not folder.is_absolute() or not folder.is_dir():
            raise _malformed("path", "Give the absolute path of a folder of this server that is there.")
        _refuse_kernel_files(folder, folder.stat())
    real, home = folder.resolve(), settings.HOME.root.resolve()
    if real.is_relative_to(home) or home.is_relative_to(real):
        raise _malformed(
            "path", "This folder holds Berth's own state, which no job may read; choose another."
        )


def resolve(reference: str) -> Dataset:
    """The dataset that ``name@version`` or ``name`` (its newest version) stands for.

    Raises:
        Malformed: not of this form (B35).
        Impossible: not registered.
    """
    if not DATASET_REFERENCE.fullmatch(reference):
        sentence = f"{reference[:80]!r} is not a dataset; give name or name@version of a registered one."
        raise Malformed(sentence, fields={"datasets": [sentence]})
    name, _, version = reference.partition("@")
    rows = Dataset.objects.select_related("root").filter(name=name).order_by("-created_at", "-pk")
    dataset = (rows.filter(version=version) if version else rows).first()
    if dataset is None:
        known = ", ".join(f"{name}@{each}" for each in rows.values_list("version", flat=True)[:5])
        raise _impossible(
            "datasets",
            f"There is no dataset {reference!r}; {f'there is {known}' if known else 'register it first'}.",
        )
    return dataset


def variable_of(name: str) -> str:
    """The environment variable in which a job finds this dataset."""
    return "BERTH_DATASET_" + re.sub(r"[^A-Za-z0-9]", "_", name).upper()


def checked_path(dataset: Dataset) -> Path:
    """The real path of a dataset, free of links, for use right now; call it at each launch (B36).

    Raises:
        Malformed: it lies outside its root, by a link for example.
        Impossible: nothing is there, neither a file nor a folder, or a file of the kernel's.
        Unavailable: the root itself is gone, an unmounted disk for example.
    """
    root = Path(os.path.realpath(dataset.root.path))
    if not os.access(root, os.X_OK, effective_ids=True) or not root.is_dir():
        raise Unavailable(
            f"The folder of dataset root {dataset.root_id} is not there now; tell the operator (is a disk unmounted?)."
        )
    path = Path(os.path.realpath(root / _relative(dataset.path)))
    if not path.is_relative_to(root):
        raise _malformed("path", f"The dataset {dataset.reference} leads out of its root {dataset.root_id}.")
    try:
        status = path.stat()
    except OSError as error:
        raise _impossible(
            "path",
            f"The dataset {dataset.reference} is not there: root {dataset.root_id}, path {dataset.path}.",
        ) from error
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise _impossible("path", f"The dataset {dataset.reference} is neither a file nor a folder.")
    _refuse_kernel_files(path, status)
    return path


@contextmanager
def _refusals_told() -> Iterator[None]:
    """What the system refuses while a dataset is looked at is said beside its path, with the file's name."""
    try:
        yield
    except OSError as error:
        name = os.fsencode(error.filename or "a file").decode(errors="replace")
        if isinstance(error, PermissionError):
            sentence = f"Berth may not read {name}; let its user read it, or register a folder without it."
        else:
            sentence = f"{name} cannot be read ({error.strerror}); try again when it can."
        raise _impossible("path", sentence) from error


def _refuse_kernel_files(path: Path, status: os.stat_result) -> None:
    if kind := kernel_devices().get(status.st_dev):
        raise _impossible("path", _no_data(path, kind))


def _no_data(path: Path, kind: str) -> str:
    return (
        f"{path} lies on a file system of the kernel ({kind}), which holds no data and tells of other people's "
        "processes; choose another folder."
    )


def measure(path: Path) -> tuple[int | None, str]:
    """Size and SHA-256 of a file or folder.

    A folder's checksum covers the paths and contents of its regular files. Beyond ``COUNTED_FILES`` files
    the size is None; beyond ``HASHED_BYTES`` bytes the checksum is empty. Links are not followed.

    Raises:
        OSError: a file or folder cannot be read; the error names it.
        Impossible: something of the kernel's is mounted in it.
    """
    files = []
    size = 0
    for relative, file_size in _walk(path):
        files.append(relative)
        size += file_size
        if len(files) > COUNTED_FILES:
            return None, ""
    if size > HASHED_BYTES:
        return size, ""
    return size, _sha256_file(path) if path.is_file() else _sha256_folder(path, sorted(files))


def _walk(path: Path) -> Iterator[tuple[str, int]]:
    if path.is_file():
        _refuse_unreadable(path, os.R_OK)
        yield path.name, path.stat().st_size
        return
    for folder, folders, names in walk(path):
        for name in names:
            file = Path(folder, name)
            entry = file.lstat()
            if stat.S_ISREG(entry.st_mode):
                _refuse_unreadable(file, os.R_OK)
                yield str(file.relative_to(path)), entry.st_size
        for name in folders:
            inner = Path(folder, name)
            _refuse_unreadable(inner, os.R_OK | os.X_OK)
            _refuse_kernel_files(inner, inner.lstat())


def _refuse_unreadable(path: Path, wanted: int) -> None:
    """Large data is not hashed, so nobody would notice before a job does."""
    if not os.access(path, wanted, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def _sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _sha256_folder(path: Path, files: list[str]) -> str:
    listing = "".join(f"{_sha256_file(path / file)} {file!r}\n" for file in files)
    return hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()


def _relative(path: str) -> str:
    """The path in its plain form; refused when it could mean anything outside a root (B35)."""
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
    """Whether it is short enough and free of control characters and halves of UTF-16 pairs."""
    return len(text) <= 1024 and not any(ord(each) < 32 or "\ud800" <= each <= "\udfff" for each in text)


def _check_reference(name: str, version: str) -> None:
    for field, value in (("name", name), ("version", version)):
        if "@" in value or not DATASET_REFERENCE.fullmatch(f"{name}@{version}"):
            raise _malformed(
                field,
                "A dataset's name and version have letters, digits, '.', '_' and '-', at most 64 and 32 of them, "
                "and begin with a letter or digit.",
            )


def _check_description(text: str) -> str:
    try:
        text = clean_text(text)
    except ValueError as error:
        raise _malformed("description", f"The description {error}.") from error
    if len(text) > 300:
        raise _malformed("description", "The description has more than 300 characters; shorten it.")
    return text


def _check_owner(user: User, name: str) -> None:
    """A name belongs to whoever registered its first version: nobody else may slip a newer one under it."""
    first = Dataset.objects.filter(name=name).order_by("pk").select_related("owner").first()
    if first and first.owner_id != user.pk and not user.is_staff:
        raise Forbidden(f"The dataset {name} belongs to {first.owner.username}; choose another name.")


def _malformed(field: str, sentence: str) -> Malformed:
    return Malformed(sentence, fields={field: [sentence]})


def _impossible(field: str, sentence: str) -> Impossible:
    return Impossible(sentence, fields={field: [sentence]})
