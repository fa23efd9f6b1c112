"""Packs the folder of a job's code: which files go, by the rules of .gitignore and .berthignore."""

import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from berth.shared.job_fields import DIFF_FILE
from berth.uploads.git_state import read_diff

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

LARGEST_FOLDER_BYTES = 2**30  # the most code that a server accepts
GIT_RULES, OWN_RULES = ".gitignore", ".berthignore"
LEFT_OUT = frozenset({"__pycache__", "node_modules", "venv"})  # besides hidden files and folders


class CannotPack(Exception):
    """The folder cannot be uploaded; the text says why and what to do."""


class _Rules(NamedTuple):
    """The rules of one file, which count for paths below its folder."""

    folder: Path
    spec: "GitIgnoreSpec"

    def verdict(self, path: Path, *, is_folder: bool) -> bool | None:
        """Whether a path is left out; None if no rule names it."""
        name = path.relative_to(self.folder).as_posix() + ("/" if is_folder else "")
        name = os.fsencode(name).decode(errors="replace")  # rules match UTF-8 only
        return self.spec.check_file(name).include


def pack(folder: Path, *, needed: Sequence[str] = ()) -> bytes:
    """Pack a folder as a zip archive, without ignored and hidden files, links, caches and virtual environments.

    In a git repository, what the files differ in from the commit is packed with them, as ``DIFF_FILE``.

    Args:
        needed: paths in the folder that the job starts with.

    Raises:
        CannotPack: nothing to pack, too much, a needed file is ignored, or rules that cannot be read.
    """
    import zipfile  # late import: costs 6 ms at each start

    folder = Path(os.path.abspath(folder))  # noqa: PTH100 -- links stay what they are
    packed, paths = io.BytesIO(), list(code_files(folder))
    _check(folder, paths, needed)
    diff = read_diff(folder, {path.relative_to(folder).as_posix() for path in paths})
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for path in paths:
            try:
                archive.write(path, PurePosixPath(path.relative_to(folder)))
            except FileNotFoundError:
                _refuse_removed(folder, path, needed)  # else another program's, of a moment
            except OSError as error:
                raise _unreadable(path, error) from None
        if diff:
            archive.writestr(DIFF_FILE, diff)
    return packed.getvalue()


def _check(folder: Path, paths: Sequence[Path], needed: Sequence[str]) -> None:
    names = {path.relative_to(folder).as_posix() for path in paths}
    for name in map(os.path.normpath, needed):
        if name not in names and (folder / name).is_file():
            raise CannotPack(
                f"The job starts with {name}, which {_reason(folder, folder / name)}. "
                f"Add the line !/{name} to {OWN_RULES}, and one for each folder above it that is ignored."
            )
    if not names:
        raise CannotPack(
            f"Nothing of {folder} would be uploaded: it is empty, or {GIT_RULES} and {OWN_RULES} leave out every file. "
            f"Lines such as !*.py in {OWN_RULES} take files in again."
        )
    for path in paths:
        try:
            os.fspath(path).encode()
        except UnicodeEncodeError:
            shown = ascii(path.relative_to(folder).as_posix())
            raise CannotPack(
                f"The name of {shown} is not UTF-8, so it cannot be uploaded. Rename it, or leave it out by a line in {OWN_RULES}."
            ) from None
    if sum(map(_size_of, paths)) > LARGEST_FOLDER_BYTES:
        raise CannotPack(
            f"{folder} holds more than {LARGEST_FOLDER_BYTES >> 30} GiB, too much for code. Name a smaller "
            f"folder, or name what the job does not need in {OWN_RULES}; data stays where it is and is named as a "
            "dataset: berth data add"
        )


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # removed just now; packing it says more
        return 0


def _refuse_removed(folder: Path, path: Path, needed: Sequence[str]) -> None:
    name = path.relative_to(folder).as_posix()
    if name in map(os.path.normpath, needed):
        raise CannotPack(f"The job starts with {name}, which was removed just now.")


def _unreadable(path: Path | str, error: OSError) -> CannotPack:
    return CannotPack(
        f"{path} cannot be read: {error.strerror}. Make it readable, or leave it out by a line in {OWN_RULES}."
    )


def _refuse_unlisted(error: OSError) -> None:
    """Let no folder be left out in silence; one that was removed just now is not missed."""
    if not isinstance(error, FileNotFoundError):
        raise _unreadable(error.filename, error) from None


def _reason(folder: Path, path: Path) -> str:
    """Why a file is not packed."""
    parts = path.relative_to(folder).parts
    if any(part.startswith(".") for part in parts):
        return "is hidden, and hidden files are not uploaded"
    if path.is_symlink():
        return "is a link, and links are not uploaded"
    return f"{GIT_RULES} or {OWN_RULES} leaves out"


def code_files(folder: Path) -> Iterator[Path]:
    """List the files of a folder to upload, in order.

    Raises:
        CannotPack: an ignore file cannot be read.
    """
    return (path for path, is_link in _entries(folder) if not is_link)


def links_left_out(folder: Path) -> list[str]:
    """The links of a folder, by their paths in it, which would be uploaded if they were files or folders.

    Not those that trackers and trainers set to their newest run.

    Raises:
        CannotPack: an ignore file cannot be read.
    """
    folder = Path(os.path.abspath(folder))  # noqa: PTH100 -- links stay what they are
    links = [path.relative_to(folder) for path, is_link in _entries(folder) if is_link]
    return [
        link.as_posix()
        for link in links
        if "wandb" not in link.parts and not link.name.startswith(("latest", "last"))
    ]


def _entries(folder: Path) -> Iterator[tuple[Path, bool]]:
    """The files to upload, and the links that nothing else leaves out; whether each is a link."""
    old_diff = folder / DIFF_FILE  # of an earlier job, fetched
    git, own = _rules_above(folder), list[_Rules]()
    for root, folders, names in os.walk(folder, onerror=_refuse_unlisted):
        here = Path(root)
        git += _read_rules(here, GIT_RULES, names)
        own += _read_rules(here, OWN_RULES, names)
        for name in sorted(folders):
            is_link = (here / name).is_symlink() and not name.startswith(".") and name not in LEFT_OUT
            # Git's rule "data/" matches folders, and to Git a link is not a folder.
            if is_link and not any(
                _is_ignored(here / name, git, own, is_folder) for is_folder in (True, False)
            ):
                yield here / name, True
        folders[:] = sorted(
            each
            for each in folders
            if not (_stays_out(here / each) or _is_ignored(here / each, git, own, True))
        )
        for name in sorted(names):
            path = here / name
            is_plain = not name.startswith(".") and path.is_file() and path != old_diff
            if is_plain and not _is_ignored(path, git, own, False):
                yield path, path.is_symlink()


def _stays_out(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name in LEFT_OUT or folder.is_symlink()
    return hidden or os.path.exists(folder / "pyvenv.cfg")  # noqa: PTH110 -- False also in a folder that refuses


def _is_ignored(path: Path, git: Sequence[_Rules], own: Sequence[_Rules], is_folder: bool) -> bool:
    """Whether a path is left out: the rule of the deepest folder counts, and any of ours before git's."""
    for rules in (*reversed(own), *reversed(git)):
        if path.is_relative_to(rules.folder):
            verdict = rules.verdict(path, is_folder=is_folder)
            if verdict is not None:
                return verdict
    return False


def _rules_above(folder: Path) -> list[_Rules]:
    """Git's rules of the folders above, up to the one that is the repository."""
    above = [folder, *folder.parents]
    top = next((number for number, each in enumerate(above) if (each / ".git").exists()), None)
    if top is None:
        return []
    exclude = _read_rules(above[top], ".git/info/exclude", [".git/info/exclude"])
    outer = [
        rules for each in reversed(above[1 : top + 1]) for rules in _read_rules(each, GIT_RULES, [GIT_RULES])
    ]
    return exclude + outer


def _read_rules(folder: Path, name: str, names: Sequence[str]) -> list[_Rules]:
    """The rules of one file, if there is one.

    Raises:
        CannotPack: the file cannot be read, or has a line that is no pattern.
    """
    path = folder / name
    if name not in names or not path.is_file():
        return []
    try:
        from pathspec import GitIgnoreSpec  # late import: only folders with ignore files need it
    except ImportError:
        raise CannotPack(f"Reading {path} needs a package: pip install pathspec") from None
    try:
        lines = path.read_text(errors="surrogateescape").splitlines()
        return [_Rules(folder, GitIgnoreSpec.from_lines(lines))]
    except OSError as error:
        raise CannotPack(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise CannotPack(f"{path} has a line that is no pattern: {error}") from None
