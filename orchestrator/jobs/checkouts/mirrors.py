"""A bare repository for each person and address, kept for the next fetch, and the files of a commit as a bundle.

People share no repository: what one may read says nothing about another.
"""

import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from django.conf import settings

from orchestrator.jobs.background import locked
from orchestrator.jobs.checkouts.failures import CannotFetch
from orchestrator.jobs.checkouts.git import Git
from orchestrator.spec.git_source import DEFAULT_REF, is_full_commit
from orchestrator.store.bundles import bundles
from orchestrator.store.files.untrusted import remove_tree

logger = logging.getLogger(__name__)

KEPT = timedelta(days=30)  # after the last fetch
LEFT_OVER_S = 3600.0  # longer than any fetch takes
MOST_PACKS = 40  # each fetch that finds something new leaves one
WORK, LOCK = "work-", "checkout-"
_LIMITS = bundles.DEFAULT_LIMITS
_LFS_HEAD = b"version https://git-lfs.github.com/spec/"
_LARGEST_POINTER_BYTES = 1024
_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,63}")
_FETCHED = re.compile(r"^[0-9a-f]+\t(?:not-for-merge)?\tbranch '(?P<branch>[^ ]+)' of ")
# The newer protocol's words and the older one's, which ssh speaks with many hosts.
_OTHER_FORMAT = re.compile(r"mismatched algorithms|not support this repository's object format")


@dataclass(frozen=True, slots=True)
class Fetched:
    commit: str
    branch: str  # empty: a tag, a commit or the default branch
    bundle: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _File:
    mode: str
    size_bytes: int
    path: str


def fetch(owner: int, url: str, ref: str, key: str | None, is_wanted: Callable[[], bool]) -> Fetched:
    """Fetch one commit and store its files.

    Args:
        ref: a branch, a tag or a commit, whole or its first digits; empty: the default branch.
        is_wanted: asked about once a second; False ends the fetch.

    Raises:
        CannotFetch: with git's words.
        NotWanted: ``is_wanted`` said so.
        OrchestratorError: the files cannot be stored as code.
        OSError: a file cannot be written.
    """
    home: Path = settings.HOME.mirrors / str(owner)
    home.mkdir(parents=True, exist_ok=True)
    mirror = mirror_of(owner, url)
    with locked(_lock_of(mirror), wait=True), _working_folder(home) as folder:
        git = Git.make(url, folder, home, key, is_wanted)
        _clear(mirror)
        try:
            return _fetch(git, mirror, ref)
        except CannotFetch as error:
            if error.cause in {"disk", "size"}:
                remove_tree(mirror)  # its objects may fill the disk, and nothing of them is of use
            raise
        except OSError:
            remove_tree(mirror)
            raise
        finally:
            _clear(mirror)


def _fetch(git: Git, mirror: Path, ref: str) -> Fetched:
    try:
        commit, branch = _update(git, mirror, ref)
    except CannotFetch as error:
        if error.cause == "ref" and (whole := _whole_commit(git, mirror, ref)):
            return _store(git, mirror, _update_commit(git, mirror, whole), "")
        if error.cause == "ref" and not ref:
            raise CannotFetch("empty", error.words) from None
        if error.cause == "commit" and is_full_commit(ref):
            return _store(git, mirror, _find_in_history(git, mirror, ref, error), "")
        # A killed fetch may have left a lock or half of a file; the repository is only a copy.
        if error.cause != "other" or not mirror.exists():
            raise
        remove_tree(mirror)
        commit, branch = _update(git, mirror, ref)
    return _store(git, mirror, commit, branch)


def _update_commit(git: Git, mirror: Path, commit: str) -> str:
    """Bring a commit that the host has to the mirror."""
    try:
        return _update(git, mirror, commit)[0]
    except CannotFetch as error:
        if error.cause != "commit":
            raise
        return _find_in_history(git, mirror, commit, error)


def _find_in_history(git: Git, mirror: Path, commit: str, refused: CannotFetch) -> str:
    """Bring everything to the mirror: a host of the older protocol, as behind a plain sshd, gives out no older commit.

    Raises:
        CannotFetch: ``refused`` if no branch or tag leads to the commit.
    """
    object_format = _format_of(git, mirror)
    remove_tree(mirror)  # without a history: git would go back no further than it does
    _init(git, mirror, object_format)
    words = ("--git-dir", mirror, "fetch", "--quiet", "--no-recurse-submodules", "--force")
    git.run(*words, "--", git.url, "+refs/heads/*:refs/berth/heads/*", "+refs/tags/*:refs/berth/tags/*")
    try:
        return git.run("--git-dir", mirror, "rev-parse", "--verify", f"{commit}^{{commit}}").decode().strip()
    except CannotFetch:
        raise refused from None


def _clear(mirror: Path) -> None:
    """Remove the halves of packs and objects that a killed git leaves, up to ``LARGEST_PACK_BYTES`` each."""
    for pattern in ("objects/pack/tmp_*", "objects/??/tmp_*"):
        for path in mirror.glob(pattern):
            path.unlink(missing_ok=True)


def lock_of(owner: int, number: int) -> Path:
    """Locked while a process is at work on a checkout."""
    return settings.HOME.mirrors / str(owner) / f"{LOCK}{number}.lock"


def mirror_of(owner: int, url: str) -> Path:
    folder: Path = settings.HOME.mirrors / str(owner) / hashlib.sha256(url.encode()).hexdigest()[:24]
    return folder


def _lock_of(mirror: Path) -> Path:
    return mirror.with_suffix(".lock")


@contextmanager
def _working_folder(home: Path) -> Iterator[Path]:
    """A folder for one fetch; it may hold a key, so it is removed at once."""
    folder = home / f"{WORK}{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        remove_tree(folder)


def _update(git: Git, mirror: Path, ref: str) -> tuple[str, str]:
    """Bring the mirror to what the host has now; the commit, and the branch if ``ref`` is one."""
    if len(list(mirror.glob("objects/pack/*.pack"))) > MOST_PACKS:
        remove_tree(mirror)
    if not (mirror / "HEAD").is_file():
        _init(git, mirror, "sha1")
    wanted = ref or DEFAULT_REF
    place = f"refs/berth/{hashlib.sha256(wanted.encode()).hexdigest()[:24]}"
    try:
        _bring(git, mirror, f"{wanted}:{place}")
    except CannotFetch as error:
        if _OTHER_FORMAT.search(error.words) is None:
            raise
        other = "sha256" if _format_of(git, mirror) == "sha1" else "sha1"
        remove_tree(mirror)
        _init(git, mirror, other)
        _bring(git, mirror, f"{wanted}:{place}")
    commit = git.run("--git-dir", mirror, "rev-parse", "--verify", f"{place}^{{commit}}").decode().strip()
    hit = _FETCHED.match((mirror / "FETCH_HEAD").read_text(errors="replace"))
    return commit, hit["branch"] if hit and not is_full_commit(ref) else ""


def _init(git: Git, folder: Path, object_format: str) -> None:
    """Make an empty repository with names of this hash, which has to be that of the host."""
    # git before 2.29 knows sha1 only, without the option.
    options = [] if object_format == "sha1" else [f"--object-format={object_format}"]
    git.run("init", "--quiet", "--bare", "--template=", *options, folder)


def _format_of(git: Git, mirror: Path) -> str:
    return git.run("--git-dir", mirror, "rev-parse", "--show-object-format").decode().strip()


def _bring(git: Git, mirror: Path, refspec: str) -> None:
    words = ["--git-dir", str(mirror), "fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--force"]
    target = ["--", git.url, refspec]
    try:
        git.run(*words, "--depth=1", *target)
    except CannotFetch as error:
        if "shallow" not in error.words:
            raise
        git.run(*words, *target)  # a plain file server cannot give a part of a history


def _whole_commit(git: Git, mirror: Path, ref: str) -> str:
    """The commit that begins with these digits; empty if the text has other characters, or if no commit or several begin with it.

    A host gives out commits by their whole names only, so the history without its files is fetched to find it.
    """
    if not _SHORT_COMMIT.fullmatch(ref):
        return ""
    history = git.folder / "history"
    _init(git, history, _format_of(git, mirror))
    words = ("--git-dir", str(history), "fetch", "--quiet", "--no-recurse-submodules", "--filter=tree:0")
    git.run(*words, "--", git.url, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
    try:
        name = git.run("--git-dir", history, "rev-parse", "--verify", f"{ref}^{{commit}}")
    except CannotFetch:
        return ""  # none, or several; the job says that there is no such ref
    return name.decode().strip()


def _store(git: Git, mirror: Path, commit: str, branch: str) -> Fetched:
    """Keep the files of a commit as a bundle, by what git would check out."""
    listed = git.run("--git-dir", mirror, "ls-tree", "-r", "-l", "-z", "--full-tree", commit)
    files = list(_read_list(listed))
    plain = [file for file in files if file.mode.startswith("100")]
    _check_size(plain)
    tree = git.folder / "tree"
    tree.mkdir()
    words = ("--git-dir", mirror, "--work-tree", tree)
    git.run(*words, "read-tree", commit)
    names = b"".join(file.path.encode(errors="surrogateescape") + b"\0" for file in plain)
    git.run(*words, "checkout-index", "--quiet", "--force", "-z", "--stdin", stdin=names)
    stored = bundles.store_folder(settings.HOME.bundles, tree, [file.path for file in plain])
    return Fetched(commit, branch, stored.sha256, tuple(_notes(files, tree)))


def _read_list(listed: bytes) -> Iterator[_File]:
    for entry in listed.split(b"\0"):
        if entry:
            about, _, path = entry.partition(b"\t")
            mode, _, _, size = about.decode().split()
            yield _File(mode, 0 if size == "-" else int(size), path.decode(errors="surrogateescape"))


def _check_size(files: Sequence[_File]) -> None:
    """Refuse what is too large before it is written.

    Raises:
        CannotFetch: with the size and the limit.
    """
    total_bytes = sum(file.size_bytes for file in files)
    if total_bytes > _LIMITS.total_bytes:
        raise CannotFetch(
            "size", f"Its files have {total_bytes:,} bytes; {_LIMITS.total_bytes:,} are accepted."
        )
    if len(files) > _LIMITS.members:
        raise CannotFetch("size", f"It has {len(files):,} files; {_LIMITS.members:,} are accepted.")


def _notes(files: Sequence[_File], tree: Path) -> Iterator[str]:
    """What a person would miss."""
    links = [file.path for file in files if file.mode == "120000"]
    modules = [file.path for file in files if file.mode == "160000"]
    small = (
        file for file in files if file.mode.startswith("100") and file.size_bytes < _LARGEST_POINTER_BYTES
    )
    pointers = [file.path for file in small if _is_pointer(tree / file.path)]
    if links:
        yield f"Links were left out: {_some(links)}."
    if modules:
        yield f"Submodules were not fetched: {_some(modules)}."
    if pointers:
        yield f"Files of Git LFS are there as pointers only: {_some(pointers)}; name large files as a dataset."


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_LFS_HEAD)) == _LFS_HEAD


def _some(paths: Sequence[str]) -> str:
    names = ", ".join(path.encode(errors="replace").decode() for path in paths[:3])
    return f"{names} and {len(paths) - 3} more" if len(paths) > 3 else names


def sweep(now_s: float) -> None:
    """Remove repositories that nobody fetched for long, and what killed fetches left behind: keys among it."""
    if not settings.HOME.mirrors.is_dir():
        return
    for home in settings.HOME.mirrors.iterdir():
        for lock in home.glob(f"{LOCK}*"):
            if now_s - lock.stat().st_mtime > KEPT.total_seconds():
                lock.unlink()
        for folder in filter(Path.is_dir, home.iterdir()):
            limit_s = LEFT_OVER_S if folder.name.startswith(WORK) else KEPT.total_seconds()
            if _age_s(folder, now_s) > limit_s:
                remove(folder)


def remove(mirror: Path) -> bool:
    """Remove a repository; False while a fetch is at work in it."""
    with locked(_lock_of(mirror)) as mine:
        if mine:
            logger.info("Removing the repository %s of person %s.", mirror.name, mirror.parent.name)
            remove_tree(mirror)
        return mine


def _age_s(folder: Path, now_s: float) -> float:
    """Since the last fetch; 0 if a fetch removed it just now."""
    try:
        newest = max(
            (path.stat().st_mtime for path in (folder, folder / "FETCH_HEAD") if path.exists()), default=now_s
        )
    except FileNotFoundError:
        return 0.0
    return now_s - newest
