"""Trainers of other packages: whether one may take a checkpoint by itself, and what the owner of a job can add."""

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path, PurePosixPath

from django.conf import settings

from orchestrator.facts.events import Happened
from orchestrator.facts.record import Fact, fact
from orchestrator.jobs import lifecycle
from orchestrator.models import Attempt, Job
from orchestrator.spec.job_spec import JobSpec
from orchestrator.store.checkpoints.manifest import Generation
from orchestrator.store.files.untrusted import open_beneath
from orchestrator.store.layout import JobFolder
from orchestrator.supervisor.protocol.records import read_record
from training.resuming.trainers import TRAINERS, Trainer

GIVEN = "BERTH_RESUME_TRAINER"  # the variable that lets a trainer take the checkpoint
MOST_NOTED_BYTES = 256
MOST_PARENTS = 100
MOST_FILES = 50
MOST_PATHS = 2_000  # that are looked for: most imports are of packages
MOST_BYTES = 256 << 10
_IMPORT = re.compile(
    r"(?m)^[ \t]*(?:from[ \t]+(\.*[\w.]+)[ \t]+import|import[ \t]+([\w.]+(?:[ \t]*,[ \t]*[\w.]+)*))"
)
_OPTION = re.compile(
    r"add_argument\(\s*(?:['\"]-\w['\"]\s*,\s*)?['\"]"
    r"(--(?:resume|(?:auto|do)[-_]resume|resume[-_](?:from|path|ckpt|checkpoint|training|from[-_](?:ckpt|checkpoint|path))))"
    r"['\"]((?:(?!add_argument).){0,400})",
    re.DOTALL,
)
_WITHOUT_VALUE = re.compile(r"store_true|BooleanOptionalAction")
_LIBRARY = re.compile(r"BERTH_RESUME_FROM|\bCheckpointer\b")


# Whether a trainer may take the checkpoint


def may_resume(job: Job, generation: Generation) -> bool:
    """Whether the first training of the script wrote a checkpoint, so that the first training may continue from it.

    A script may train several models one after the other.  What its owner says about resuming goes before.
    """
    if job.spec.resume_args or generation.source == "library":
        return False
    if job.events.of(Happened.RETRIED, not_resumable=True).exists():
        return False
    written_ns = max((file.seen[1] for file in generation.own_files if file.seen), default=0)
    begun = [times for folder in _folders(job) for times in _trainings(folder) if times[0] <= written_ns]
    return bool(begun) and all(later > written_ns for later in max(begun)[1:])


def failed_on_checkpoint(attempt: Attempt) -> bool:
    """Whether a trainer got a checkpoint by itself, and its script then failed before it got any further.

    A job must not fail for good on what nobody asked for: without the checkpoint it would have begun at step 0.
    """
    record = read_record(settings.HOME.job(attempt.job_id).attempt(attempt.number).launch) or {}
    variables = record.get("env")
    attempt = Attempt.objects.get(pk=attempt.pk)
    is_further = attempt.last_step is not None and attempt.last_step > (attempt.resumed_from_step or 0)
    return isinstance(variables, dict) and GIVEN in variables and not is_further


def _folders(job: Job) -> Iterator[JobFolder]:
    """The folders of a job, and of those whose checkpoints were copied for it."""
    current: Job | None = job
    for _ in range(MOST_PARENTS):
        if current is None:
            return
        yield settings.HOME.job(current.pk)
        current = current.resume_job


def _trainings(folder: JobFolder) -> Iterator[list[int]]:
    """For each attempt that trained with a known trainer: when its first trainings began (ns since 1970)."""
    for path in sorted((folder.root / "attempts").glob("[0-9]*")):
        try:
            with open(open_beneath(folder.attempt(int(path.name)).logs, "rank0.trainings"), "rb") as file:  # noqa: PTH123 -- a descriptor
                words = file.read(MOST_NOTED_BYTES).split()
        except (OSError, ValueError):
            continue
        times = [int(word) for word in takewhile(bytes.isdigit, words)]
        if times:
            yield times


# What the owner can add


def tell_how_to_resume(job: Job, work: Path) -> None:
    """Write into the history what lets the script resume, unless it does so already."""
    what = _advice(job.spec, work)
    if what is not None and not job.events.of(what.code).exists():
        lifecycle.remark(job, what, actor="launcher")


def _advice(spec: JobSpec, work: Path) -> Fact | None:
    if spec.kind != "script" or spec.resume_args or spec.checkpoint_glob:
        return None
    texts = list(_code(spec, work))
    code = "\n".join(texts)
    names = {name.partition(".")[0] for text in texts for name in _imports(text)}
    used = [trainer for trainer in TRAINERS if _is_used(trainer, names, code)]
    if any(trainer.calls for trainer in used) or _LIBRARY.search(code):
        return None
    if option := _OPTION.search(code):
        words = option[1] if _WITHOUT_VALUE.search(option[2]) else f"{option[1]} {{checkpoint}}"
        return fact(Happened.RESUME_OPTION, words=words)
    if used and not any(re.search(trainer.loads, code) for trainer in used):
        return fact(Happened.RESUME_CODE, trainer=used[0].name, line=used[0].add)
    return None


def _is_used(trainer: Trainer, names: set[str], code: str) -> bool:
    return not names.isdisjoint(trainer.packages) and re.search(trainer.uses, code) is not None


def _code(spec: JobSpec, work: Path) -> Iterator[str]:
    """The text of what the job starts, and of the modules of the upload that it imports."""
    pending = list(_starts(spec))
    seen: set[str] = set()
    texts = 0
    while pending and len(seen) < MOST_PATHS and texts < MOST_FILES:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        try:
            with open(open_beneath(work, path), encoding="utf-8", errors="replace") as file:  # noqa: PTH123 -- a descriptor
                text = file.read(MOST_BYTES)
        except (OSError, ValueError):
            continue
        texts += 1
        yield text
        pending += _paths(text, {PurePosixPath(path).parent, PurePosixPath(spec.folder), PurePosixPath(".")})


def _paths(text: str, folders: set[PurePosixPath]) -> Iterator[str]:
    """Where the modules that a text imports lie, if they are the upload's."""
    for name in set(_imports(text)):
        place = name.lstrip(".").replace(".", "/")
        for folder in folders:
            yield str(folder / f"{place}.py")
            yield str(folder / place / "__init__.py")


def _starts(spec: JobSpec) -> Iterator[str]:
    """Paths of the upload that the job may start, from its own folder."""
    folder = PurePosixPath(spec.folder)
    if spec.runs_once:
        yield from (str(folder / word) for word in spec.command if word.endswith((".py", ".sh")))
    elif spec.module is not None:
        place = spec.module.replace(".", "/")
        yield from (str(folder / f"{place}.py"), str(folder / place / "__main__.py"))
    else:
        yield spec.script_name


def _imports(text: str) -> Iterator[str]:
    for one, several in _IMPORT.findall(text):
        yield from filter(None, [one, *(name.strip() for name in several.split(","))])
