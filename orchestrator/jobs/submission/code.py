"""The code of a submit: exactly one upload or source, stored by its hash, with the file to run in it."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import BinaryIO, Protocol, cast

from django.conf import settings
from django.utils import timezone

from orchestrator.exceptions import Malformed, NotFound, TooLarge
from orchestrator.jobs.environments import requests
from orchestrator.jobs.submission import checks, starts
from orchestrator.live import wakeups
from orchestrator.models import Checkout, Job
from orchestrator.spec.job_spec import JobSpec
from orchestrator.spec.packages import EnvironmentFiles
from orchestrator.store.bundles import bundles, scripts
from orchestrator.store.files.untrusted import open_plain

# A session may begin without code; a bundle has at least one file.
EMPTY_NAME = "README.md"
EMPTY_TEXT = b"Files in this folder stay while Berth keeps the files of this session.\n"
COMPILED = frozenset({".pyc", ".pyz"})  # Python runs these too, but they are not text


class Upload(Protocol):
    """A file part of a request; Django's UploadedFile is one."""

    @property
    def name(self) -> str | None: ...

    def read(self, size: int = -1, /) -> bytes: ...

    def seek(self, offset: int, /) -> int: ...


def is_fetched(spec: JobSpec, script: Upload | None, bundle: Upload | None) -> bool:
    """Whether the server fetches the code, after the submit.

    Raises:
        Malformed: files were sent as well.
    """
    if spec.source is None or spec.source.git is None:
        return False
    if script is not None or bundle is not None:
        raise _not_once()
    if isinstance(spec.environment, EnvironmentFiles):
        sentence = "Name a file of the repository; files cannot be sent beside code that is fetched from git."
        raise Malformed(sentence, fields={"environment": [sentence]})
    return True


def checkout_of(owner_id: int, spec: JobSpec, given: Collection[str]) -> Checkout:
    """The row for code to fetch; a worker is asked for it after the transaction.

    Args:
        given: names of the fields that the submit named.
    """
    source = spec.source
    if source is None or source.git is None:
        raise TypeError("the code of this job is not fetched")
    row = Checkout.objects.create(
        owner_id=owner_id,
        url=source.git,
        ref=source.ref or "",
        key=source.key or "",
        given=sorted(given),
        created_at=timezone.now(),
    )
    wakeups.check_out(row.pk)
    return row


def source_of(job: Job) -> dict[str, str | None]:
    """Where a clone of a job gets its code: the same bundle, or the repository if its code never came."""
    if job.bundle or job.checkout is None:
        return {"bundle": job.bundle}
    return {"git": job.checkout.url, "ref": job.checkout.ref or None, "key": job.checkout.key or None}


def _not_once() -> Malformed:
    return Malformed(
        "Give the code once: a part named script (one .py), a part named bundle (.zip or .tar.gz), or source.",
        fields={"source": ["give exactly one of script, bundle and source"]},
    )


def store_code(
    spec: JobSpec, script: Upload | None, bundle: Upload | None
) -> tuple[JobSpec, bundles.Bundle, list[str]]:
    """Store the code of a job. Returns the job with its entrypoint, the stored bundle, and warnings.

    Raises:
        Malformed, TooLarge: not exactly one code, unreadable code, or no file to run in it.
        Impossible: a bundle that is not stored here.
    """
    given = [part for part in (script, bundle, spec.source) if part is not None]
    if not given and spec.has_socket:
        return spec, bundles.store_script(settings.HOME.bundles, EMPTY_NAME, EMPTY_TEXT), []
    if len(given) != 1:
        raise _not_once()
    if bundle is not None:
        with _problems_of_field("bundle"):
            stored = bundles.store_archive(settings.HOME.bundles, cast(BinaryIO, bundle))
    elif spec.source is not None and spec.source.bundle is not None:
        try:
            stored = bundles.open_bundle(settings.HOME.bundles, spec.source.bundle)
        except NotFound:
            raise checks.no_bundle(spec.source.bundle) from None
    else:
        with _problems_of_field("source" if script is None else "script"):
            return _store_script(spec, script)
    spec = _with_only_script(spec, stored)
    warnings = _check_start(spec, stored)
    return spec, stored, warnings if bundle is not None else []


def _with_only_script(spec: JobSpec, stored: bundles.Bundle) -> JobSpec:
    """The job with the only script of its code, where it names nothing to start and there is no train.py."""
    paths = [file.path for file in stored.files]
    if spec.entrypoint is None or "entrypoint" in spec.model_fields_set or spec.entrypoint in paths:
        return spec
    script = starts.only_script(paths)
    return spec.model_copy(update={"entrypoint": script}) if script else spec


def _check_start(spec: JobSpec, stored: bundles.Bundle) -> list[str]:
    """Check that the upload has what the job starts, as far as that is known before it starts."""
    paths = frozenset(file.path for file in stored.files)
    starts.check_folder(spec, paths)
    if spec.module is not None:
        return starts.check_module(spec.module, paths, spec.folder)
    if spec.program is not None:
        return []
    if spec.entrypoint is None:
        if not requests.declares(spec, stored.sha256):
            starts.check_command(spec, paths, settings.HOME.bundles / stored.sha256)
        folder = settings.HOME.bundles / stored.sha256
        return [*starts.background_warning(spec, folder), *starts.shell_warnings(spec, folder)]
    if spec.entrypoint not in paths:
        sentence = starts.no_script(spec, paths, settings.HOME.bundles / stored.sha256)
        raise Malformed(sentence, fields={"entrypoint": [sentence]})
    with _problems_of_field("entrypoint"):
        return _check_entry(spec.entrypoint, stored)


def _check_entry(entrypoint: str, stored: bundles.Bundle) -> list[str]:
    """Check the file to run like a single script; other packed files may be anything."""
    if PurePosixPath(entrypoint).suffix in COMPILED:
        return []
    size_bytes = next(file.size_bytes for file in stored.files if file.path == entrypoint)
    if size_bytes > bundles.DEFAULT_LIMITS.script_bytes:
        raise bundles.too_long(entrypoint, size_bytes)
    with os.fdopen(open_plain(settings.HOME.bundles / stored.sha256 / entrypoint), "rb") as file:
        data = file.read()
    return scripts.check_script(entrypoint, data, in_archive=True)


@contextmanager
def _problems_of_field(name: str) -> Iterator[None]:
    """Attach problems of an upload to the field that it came in."""
    try:
        yield
    except (Malformed, TooLarge) as error:
        error.fields = error.fields or {name: [error.args[0]]}  # a sentence, for readers of other languages
        raise


def _store_script(spec: JobSpec, script: Upload | None) -> tuple[JobSpec, bundles.Bundle, list[str]]:
    own_name = PurePosixPath(script.name).name if script is not None and script.name else None
    if script is None:
        data = (spec.source.text if spec.source and spec.source.text else "").encode(errors="surrogatepass")
    else:
        if "entrypoint" not in spec.model_fields_set and own_name and not spec.has_socket:
            spec = spec.model_copy(update={"entrypoint": own_name})
        limit = bundles.BundleLimits().script_bytes
        data = script.read(limit + 1)
    name = spec.entrypoint or own_name or spec.script_name
    is_python = spec.entrypoint is not None or name.endswith(".py")
    warnings = scripts.check_script(name, data) if is_python else []
    stored = bundles.store_script(settings.HOME.bundles, name, data)
    if spec.entrypoint is None or spec.workdir is not None:
        warnings += _check_start(spec, stored)
    return spec, stored, warnings
