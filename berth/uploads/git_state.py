"""Which commit a folder of code is at, and what differs from it."""

import os
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import NotRequired, TypedDict

MOST_DIFF_BYTES = 256 * 1024
_MOST_NAMES = 2_000
_WITHIN_S = 20
_OF_HOOKS = frozenset(
    {
        *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_NAMESPACE"),
        *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
    }
)


class GitState(TypedDict):
    """What is kept with a job."""

    commit: str
    branch: NotRequired[str]  # missing where no branch is checked out
    dirty: bool  # some of the uploaded files differ from the commit, or are not in it


def read_state(code: Path) -> GitState | None:
    """The commit, branch and whether the script or folder differs; None outside of a repository, or without git."""
    folder, name = (code, ".") if code.is_dir() else (code.parent, code.name)
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    # Whatever the person's settings hide in their own status.  An ignored script counts, too; an ignored file of a
    # folder is not uploaded.
    options = ("--porcelain", "--untracked-files=normal", *(["--ignored"] if name != "." else []))
    changed = _git(folder, "--literal-pathspecs", "status", *options, "--", name)
    if name == "." and changed == b"":
        changed = (
            b"" if _git(folder, "ls-tree", "HEAD") else None
        )  # none of an ignored folder is in the commit
    # What git could not compare in time may differ.
    state = GitState(commit=commit.decode().strip(), dirty=changed != b"")
    branch = (_git(folder, "symbolic-ref", "--short", "-q", "HEAD") or b"").decode(errors="replace").strip()
    if branch:
        state["branch"] = branch[:200]
    return state


def read_diff(folder: Path, packed: Collection[str]) -> bytes:
    """What the uploaded files differ in from the commit, shortened to 256 KiB; empty for none.

    Args:
        packed: paths of the uploaded files; changes of others stay here, but for files that were deleted.
    """
    names = (_git(folder, "diff", "--name-only", "-z", "--relative", "HEAD", "--", ".") or b"").split(b"\0")
    texts = [os.fsdecode(name) for name in names if name]
    told = [name for name in texts if name in packed or not (folder / name).exists()][:_MOST_NAMES]
    if not told:
        return b""
    options = ("--no-ext-diff", "--no-textconv", "--no-color", "--relative")
    diff = _git(folder, "diff", *options, "HEAD", "--", *(f":(literal){name}" for name in told)) or b""
    if len(diff) > MOST_DIFF_BYTES:
        cut = diff[:MOST_DIFF_BYTES].rpartition(b"\n")[0]
        return cut + b"\n# The rest was left out: %d bytes in all.\n" % len(diff)
    return diff


def _environment() -> dict[str, str]:
    """The person's own, without what git tells its hooks: it names the repository that they are of, whatever the folder."""
    return {name: value for name, value in os.environ.items() if name not in _OF_HOOKS}


def _git(folder: Path, *words: str) -> bytes | None:
    """The output of a git command; None where it fails."""
    try:
        answer = subprocess.run(  # noqa: S603 -- git, with words of our own and paths that it reads as they are
            ["git", "-C", str(folder), *words],  # noqa: S607 -- the one that people use themselves
            capture_output=True,
            timeout=_WITHIN_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**_environment(), "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None
