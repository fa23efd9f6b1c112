"""Which packages a submit asks for: what the job names, else what its code declares."""

import hashlib
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import orjson
from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser

from berth.shared.package_lists import PACKAGE_FILES, text_of
from orchestrator.exceptions import Sentence
from orchestrator.facts.record import Fact
from orchestrator.jobs.environments.declarations import read_file
from orchestrator.jobs.environments.declared import (
    OWN,
    Declared,
    Read,
    check_python,
    is_satisfied_here,
    refused,
)
from orchestrator.jobs.launch import session_programs
from orchestrator.jobs.launch.start import SRC
from orchestrator.models import Environment, EnvironmentState, Job, Pool
from orchestrator.spec.job_spec import JobSpec
from orchestrator.spec.packages import LARGEST_FILES_BYTES, EnvironmentFiles
from orchestrator.store.files.untrusted import open_beneath

# A request for "transformers" reuses what others got in these hours; later ones resolve to newer versions.
RESOLVED_FOR = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a submit asks for.  ``declared`` is None for Berth's own packages or a registered interpreter's."""

    spec: JobSpec  # with the name of what was found
    declared: Declared | None = None
    notes: tuple[str, ...] = ()


def of_submit(user: AbstractBaseUser, spec: JobSpec, bundle: str) -> Wanted:
    """Find out what packages a job needs.

    Args:
        bundle: SHA-256 of its code.

    Raises:
        Malformed: a list of packages cannot be read, or something named is not there.
    """
    pool = Pool.objects.filter(pk=spec.pool).first()

    def of_earlier(name: str) -> Declared | None:
        return _of_earlier(user, bundle, name)

    return choose(spec, reader(bundle), pool.pythons if pool else {}, of_earlier)


def choose(
    spec: JobSpec, read: Read, pythons: Mapping[str, str], earlier: Callable[[str], Declared | None]
) -> Wanted:
    """As ``of_submit``; a name is a file, else an interpreter of the pool, else what an earlier job sent under it."""
    if spec.image is not None:
        # A digest is the same for ever; a tag is asked for again after a day.
        return Wanted(spec, Declared(spec.image, image=spec.image, locked="@sha256:" in spec.image))
    spec = session_programs.with_packages(spec, list(pythons))
    named = spec.environment
    if spec.python is not None:
        if spec.with_packages or named not in (None, OWN):
            raise refused(
                Sentence(
                    "The interpreter {python} is used as it is; to add packages to it, name it as the environment.",
                    python=spec.python,
                )
            )
        return Wanted(spec)
    if isinstance(named, EnvironmentFiles) and named.found:
        texts = named.files
        unnamed = spec.model_copy(update={"environment": None})
        return _discover(unnamed, lambda name: texts[name] if name in texts else read(name))
    if isinstance(named, EnvironmentFiles):
        found = _checked(read_file(named.name, named.files.get), named.name)
        return _wanted(spec.model_copy(update={"environment": named.name}), found)
    if named is None:
        return _discover(spec, read)
    if named == OWN:
        return _wanted(spec, None)
    if (text := read(named)) is not None:
        return _wanted(spec, _checked(read_file(named, read), named, empty=not text.strip()))
    if named in pythons:
        if spec.with_packages:
            origin = f"{named} and --with"
            lines = tuple(spec.with_packages)
            return Wanted(spec, Declared(origin, lines=lines, interpreter=pythons[named]))
        return Wanted(spec.model_copy(update={"python": named}))
    if (known := earlier(named)) is not None:
        return _wanted(spec, known)
    registered = (
        Sentence("; registered with pool {pool}: {names}", pool=spec.pool, names=", ".join(sorted(pythons)))
        if pythons
        else ""
    )
    raise refused(
        Sentence(
            "There is no file {named!r} in the code, and no environment of that name{registered}. Name a file such as requirements.txt, or {own} for Berth's own packages.",
            named=named,
            registered=registered,
            own=OWN,
        )
    )


def _checked(found: Declared | None, name: str, *, empty: bool = False) -> Declared:
    is_project = posixpath.basename(name) == "pyproject.toml"
    if not empty and (found is None or (is_project and found.is_empty)):
        raise refused(
            Sentence("{name} declares no packages; list some, or leave out the environment.", name=name)
        )
    return found or Declared(name)


def _discover(spec: JobSpec, read: Read) -> Wanted:
    """What the script's header, else the first list of packages beside it, declares.

    What Berth's own environment has already changes nothing for the job.
    """
    scripts = _scripts(spec)
    for name in (*scripts, *PACKAGE_FILES):
        found = read_file(name, read)
        if found is None:
            continue
        check_python(found)
        if found.is_empty:
            return replace(_wanted(spec, None), notes=found.notes)
        if is_satisfied_here(found) and not spec.with_packages:
            return Wanted(spec, notes=found.notes)
        wanted = _wanted(spec.model_copy(update={"environment": name}), found)
        told = f"The packages come from {name}; --environment {OWN} runs the job with Berth's own."
        return replace(wanted, notes=(*wanted.notes, *([] if name in scripts else [told])))
    return _wanted(spec, None)


def _scripts(spec: JobSpec) -> tuple[str, ...]:
    """The scripts that a job starts, as paths of the upload: their headers may name packages."""
    if spec.entrypoint is not None:
        names = [spec.entrypoint]
    elif spec.module is not None:
        place = f"{spec.module.replace('.', '/')}.py"
        names = [f"{spec.folder}/{place}", f"{spec.folder}/{SRC}/{place}"]
    else:
        names = [f"{spec.folder}/{word}" for word in spec.command if not word.startswith("/")]
    return tuple(posixpath.normpath(name) for name in names if name.endswith(".py"))


def declares(spec: JobSpec, bundle: str) -> bool:
    """Whether a job brings packages, and with them programs that are not there yet.

    Raises:
        Malformed: a list of packages cannot be read.
    """
    if spec.image or spec.with_packages or spec.environment not in (None, OWN):
        return True
    read = reader(bundle)
    if spec.environment is not None:
        return False
    found = (read_file(name, read) for name in (*_scripts(spec), *PACKAGE_FILES))
    return any(one is not None and not one.is_empty for one in found)


def _wanted(spec: JobSpec, found: Declared | None) -> Wanted:
    """With the packages that the job adds."""
    if found is not None:
        check_python(found)
    if not spec.with_packages:
        return Wanted(spec, found, found.notes if found else ())
    if found is None:
        return Wanted(spec, Declared("--with", lines=tuple(spec.with_packages)))
    added = replace(
        found,
        origin=f"{found.origin} and --with",
        lines=(*_without_hashes(found), *spec.with_packages),
        locked=False,
    )
    return Wanted(spec, added, found.notes)


def _without_hashes(found: Declared) -> list[str]:
    """The lines without the hashes of a lock: with packages beside it, it is resolved again."""
    return [line.split(" --hash=")[0] for line in found.lines]


def reader(bundle: str) -> Read:
    """Reads texts of a stored bundle."""

    def read(name: str) -> str | None:
        try:
            with open(open_beneath(settings.HOME.bundles / bundle, name), "rb") as file:  # noqa: PTH123 -- a descriptor
                data = file.read(LARGEST_FILES_BYTES + 1)
        except OSError:
            return None
        if len(data) > LARGEST_FILES_BYTES:
            if name.endswith(".py"):  # a header this far down does not count
                return None
            raise refused(
                Sentence(
                    "{name} has more than {largest_files_bytes:,} bytes, too much for a list of packages.",
                    name=name,
                    largest_files_bytes=LARGEST_FILES_BYTES,
                )
            )
        if name.endswith(".py"):  # which may declare another encoding; a header is plain
            return data.decode(errors="replace")
        try:
            return text_of(data)
        except UnicodeDecodeError:
            raise refused(Sentence("{name} is not UTF-8; save it as UTF-8 text.", name=name)) from None

    return read


def _of_earlier(user: AbstractBaseUser, bundle: str, name: str) -> Declared | None:
    """What was sent beside the same code with an earlier job: a clone in the form names the file only."""
    jobs = Job.objects.visible_to(user).filter(bundle=bundle, environment__isnull=False)
    jobs = jobs.exclude(environment__request__has_key="image")
    jobs = jobs.exclude(environment__request__has_key="interpreter")  # which the pool no longer has
    job = jobs.filter(spec_fields__environment=name).select_related("environment").first()
    if job is None or job.environment is None:
        return None
    request = job.environment.request
    added = len(job.spec.with_packages)  # they stand last
    return Declared(
        name,
        lines=tuple(request["lines"][: len(request["lines"]) - added]),
        constraints=tuple(request["constraints"]),
        lock=request["lock"],
        locked=request["locked"],
        prereleases=request["prereleases"],
    )


def row_for(declared: Declared, now: datetime) -> Environment:
    """The row of a request: that of an equal one which is as good as new, else another."""
    request = declared.as_json()
    named = [declared.origin, request]  # people read the origin, and it may be the name of a script
    digest = hashlib.sha256(orjson.dumps(named, option=orjson.OPT_SORT_KEYS)).hexdigest()
    rows = Environment.objects.filter(request_sha256=digest).exclude(state=EnvironmentState.FAILED)
    if not declared.locked:
        rows = rows.filter(created_at__gt=now - RESOLVED_FOR)
    return rows.first() or Environment.objects.create(
        request_sha256=digest, request=request, origin=declared.origin[:200], created_at=now
    )


def again(environment: Environment, now: datetime) -> Environment:
    """The row for a clone: the same, and so the same lock; after a failure another one, which tries once more.

    An image that is no longer what it was has no lock: the clone takes what its name leads to now.
    """
    if environment.state != EnvironmentState.FAILED:
        return environment
    moved_on = environment.image and Fact.read(environment.why).facts.get("cause") in {"changed", "missing"}
    return Environment.objects.create(
        request_sha256=environment.request_sha256,
        request=environment.request,
        origin=environment.origin,
        lock="" if moved_on else environment.lock,
        created_at=now,
    )
