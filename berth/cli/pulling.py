"""berth pull: download the files that a job wrote."""

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from rich.table import Table
from rich.text import Text

from berth.cli.printing import remark, safe
from berth.cli.tables import grid, job_line
from berth.client import Berth, BerthError, Checkpoint, Job, Medium, NotFound, OutputFile
from berth.shared import words

MOST_NAMED = 10  # of a checkpoint's files in a sentence


def pull_files(job: Job, patterns: list[str], folder: Path | None, *, overwrite: bool) -> list[Path]:
    """Download the files of the output folder and beside the script, or those that match a pattern.

    Raises:
        BerthError: there is no such file, or a local file differs in size.
    """
    listed = job.file_list()
    files = [each for each in listed.results if not patterns or _is_meant(each.path, patterns)]
    if not files:
        what = f"has no file that matches {' or '.join(patterns)}" if patterns else "has written no files"
        raise NotFound(f"{job_line(job)} {what} in its output folder or beside its script.")
    folder = folder or Path(_folder_name(job))
    targets = _targets(folder, files)
    if not overwrite:
        _refuse_overwriting(targets)
    fetched = []
    for each, to in targets:
        if to.exists() and not overwrite:
            continue  # here already, with the same size
        remark(f"{safe(each.path)}  {words.size(each.size_bytes)}")
        fetched.append(job.fetch_file(each.path, to, folder=_place(each)))
    remark(f"{words.plural(len(fetched), 'file')} fetched into {folder}/")
    if listed.truncated:
        remark(
            f"The job wrote more than the {len(listed.results):,} files that the server lists; fetched only these."
        )
    return fetched


def pull_checkpoint(job: Job, wanted: str, patterns: list[str], folder: Path | None) -> list[Path]:
    """Download one checkpoint, by step or name, or ``latest``: as a tar archive, or the files that patterns name.

    Raises:
        NotFound: the job has no such checkpoint, or the checkpoint no such file.
    """
    kept = job.checkpoints()
    if not kept:
        raise NotFound(f"{job_line(job)} has no checkpoints.")
    chosen = kept[-1] if wanted == "latest" else _find(job, kept, wanted)
    if patterns:
        return _pull_checkpoint_files(job, chosen, patterns, folder or Path())
    to = (folder or Path()) / f"{_folder_name(job)}-{_label(chosen)}.tar"
    remark(f"checkpoint {_label(chosen)}  {words.size(chosen.size_bytes)}")
    return [job.fetch_checkpoint(chosen.name, to)]


def _pull_checkpoint_files(job: Job, chosen: Checkpoint, patterns: list[str], folder: Path) -> list[Path]:
    meant = [
        each
        for each in chosen.files
        if _is_meant(each.path, patterns) or _is_meant(_name(each.path), patterns)
    ]
    if not meant:
        known = ", ".join(safe(_name(each.path)) for each in chosen.files[:MOST_NAMED])
        raise NotFound(f"Checkpoint {_label(chosen)} has no file {' or '.join(patterns)}; it has {known}.")
    targets = [(each, _target(folder, _name(each.path))) for each in meant]
    if present := [str(to) for _, to in targets if to.exists()]:
        raise BerthError(f"{present[0]} is here already; move it away, or choose another folder with --to.")
    fetched = []
    for each, to in targets:
        remark(f"{safe(each.path)}  {words.size(each.size_bytes)}")
        fetched.append(job.fetch_checkpoint_file(chosen.name, each.path, to))
    return fetched


def pull_model(
    berth: Berth, reference: str, patterns: list[str], folder: Path | None, *, overwrite: bool
) -> list[Path]:
    """Download the files of a model, or those that match a pattern.

    Raises:
        BerthError: there is no such model or file, or a local file differs in size.
    """
    model = berth.model(reference)
    files = [each for each in model.files if not patterns or _is_meant(each["path"], patterns)]
    if not files:
        known = ", ".join(safe(each["path"]) for each in model.files[:MOST_NAMED])
        raise NotFound(f"{model.reference} has no file {' or '.join(patterns)}; it has {known}.")
    folder = folder or Path(f"{model.name}-{model.version}")
    targets = [(each, _target(folder, each["path"])) for each in files]
    differing = [to for each, to in targets if to.exists() and to.stat().st_size != each["size_bytes"]]
    if differing and not overwrite:
        raise BerthError(
            f"{differing[0]} is here already and differs; use --force to replace it, or --to another folder."
        )
    wanted = [(each, to) for each, to in targets if overwrite or not to.exists()]
    for each, to in wanted:
        remark(f"{safe(each['path'])}  {words.size(each['size_bytes'])}")
        berth.fetch_model(model.reference, each["path"], to)
    remark(f"{words.plural(len(wanted), 'file')} fetched into {folder}/")
    return [to for _, to in wanted]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def checkpoint_table(kept: Sequence[Checkpoint]) -> Table:
    table = grid("step", "file", "files", "size", "attempt", "name")
    for each in kept:
        table.add_row(
            "" if each.step is None else f"{each.step:,}",
            Text(safe(each.path)),
            str(each.file_count),
            words.size(each.size_bytes),
            str(each.attempt),
            each.name,
        )
    return table


def say_unkept(job: Job) -> None:
    """Point out what looks like checkpoints and is not kept."""
    for each in job.unkept():
        remark(
            f"{safe(each['path'])} was written {words.plural(each['times'], 'time')} outside the checkpoint folder "
            f"and is not kept; add --checkpoint-glob '{safe(each['glob'])}'"
        )


def media_table(found: Sequence[Medium]) -> Table:
    table = grid("step", "kind", "name", "attempt", "number")
    for each in found:
        table.add_row(f"{each.step:,}", each.kind, Text(safe(each.name)), str(each.attempt), str(each.number))
    return table


def pull_media(job: Job, found: Sequence[Medium], folder: Path) -> list[Path]:
    """Write pictures as PNG files and the rest as JSON, each named by its name, attempt, step and number.

    Raises:
        BerthError: nothing was reported, or a file cannot be written.
    """
    if not found:
        raise NotFound(
            f"{job_line(job)} has reported no picture, histogram, table or text of this kind and name."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_pull_medium(job, each, folder) for each in found]
    except OSError as error:
        raise BerthError(f"{error.filename or folder} cannot be written ({error.strerror}).") from error


def _pull_medium(job: Job, each: Medium, folder: Path) -> Path:
    name = "".join(sign if sign.isalnum() or sign in "-_" else "-" for sign in each.name)[:60]
    to = folder / f"{name}-attempt{each.attempt}-step{each.step}-{each.number}"
    if each.kind == "image":
        return job.fetch_image(each, to.with_name(f"{to.name}.png"))
    to = to.with_name(f"{to.name}.json")
    to.write_text(json.dumps(job.medium_value(each), indent=2))
    return to


def _find(job: Job, kept: list[Checkpoint], wanted: str) -> Checkpoint:
    for each in kept:
        if wanted in {each.name, str(each.step)}:
            return each
    known = ", ".join(_label(each) for each in kept)
    raise NotFound(f"{job_line(job)} has no checkpoint {wanted!r}; it has {known}.")


def _label(checkpoint: Checkpoint) -> str:
    return checkpoint.name if checkpoint.step is None else str(checkpoint.step)


def _is_meant(path: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(path, each) or path.startswith(f"{each.rstrip('/')}/") for each in patterns)


def _folder_name(job: Job) -> str:
    kept = "".join(each if each.isalnum() or each in "-_." else "-" for each in job.name).strip(".-")
    return f"{kept[:60] or 'job'}-{job.short_id}"


def _place(file: OutputFile) -> str | None:
    place = file.json.get("folder")  # older servers list the output folder only
    return place if place in {"output", "work"} else None


def _targets(folder: Path, files: list[OutputFile]) -> list[tuple[OutputFile, Path]]:
    """Where each file goes; one beside the script goes to ``work/`` if the output folder has the same path."""
    targets: dict[str, OutputFile] = {}
    for each in files:
        path = each.path
        while path in targets:
            path = f"work/{path}"
        targets[path] = each
    return [(each, _target(folder, path)) for path, each in targets.items()]


def _target(folder: Path, path: str) -> Path:
    """Where a file goes; what a server names must stay below the folder."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise BerthError(
            f"The server names a file {path!r}, which would lie outside {folder}; nothing was fetched."
        )
    return folder.joinpath(*parts)


def _refuse_overwriting(targets: list[tuple[OutputFile, Path]]) -> None:
    for each, to in targets:
        if to.exists() and to.stat().st_size != each.size_bytes:
            raise BerthError(
                f"{to} is here already and differs; use --force to replace it, or --to another folder."
            )
