"""Where a job's code comes from when nothing is uploaded: addresses of git repositories, and commits."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictStr, model_validator

from orchestrator.exceptions import Sentence
from orchestrator.spec.plain_text import clean_text, why_unwritable

DEFAULT_REF = "HEAD"
_EXAMPLES = "https://github.com/lab/code.git or git@github.com:lab/code.git"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])"
_USER = r"[A-Za-z0-9_][A-Za-z0-9_.+-]*"
# As scp writes it; without a user, host:/path would be a scheme with a slash missing.
_SHORT = re.compile(rf"(?:{_USER}@{_HOST}:/?|{_HOST}:)(?![-:/])[^\s]+")
# How access tokens of the usual hosts begin; as the user of an address they work without a password.
_TOKEN = re.compile(
    r"gh[opsur]_|github_pat_|gl(?:agent|cbt|dt|ffct|ft|imt|oas|pat|ptt|rt|rtr|soat)-|ATBB|ATCTT|hf_|[0-9a-f]{40}"
)
_LONG = re.compile(rf"(?P<scheme>https|ssh)://(?:{_USER}@)?{_HOST}(?::[0-9]{{1,5}})?/(?!-)[^\s?#]+")
_FILE = re.compile(r"file:///(?!-)[^\s?#]+")
# What git itself refuses in the name of a branch or tag, and a dash that would make it an option.
_NO_REF = re.compile(r"^[-/.+]|\.\.|//|@\{|[\s~^:?*\[\\\x00-\x20\x7f]|\.lock(?:/|$)|[/.]$")
_FULL_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def _address(value: str) -> str:
    """The address as git takes it; pip's spelling ``git+https://`` is one, too."""
    text = clean_text(value).removeprefix("git+")
    parts = urlsplit(text)
    if parts.password is not None:
        raise ValueError(
            "has a password in it, which logs and pages would show; store it as a secret and name that as key"
        )
    user = parts.username if "://" in text else text.partition("@")[0]
    if _TOKEN.match(user or ""):
        raise ValueError(
            "has a token in it, which logs and pages would show; store it as a secret and name that as key"
        )
    if _LONG.fullmatch(text) or _FILE.fullmatch(text):
        return text
    if "://" not in text and "::" not in text and _SHORT.fullmatch(text):
        return text
    raise ValueError(
        Sentence(
            "{value!r} is not an address that Berth fetches from; give one such as {examples}",
            value=value[:80],
            examples=_EXAMPLES,
        )
    )


def _ref(value: str) -> str:
    if problem := why_unwritable(value):
        raise ValueError(problem)
    if _NO_REF.search(value):
        raise ValueError(
            Sentence(
                "{value!r} is not a branch, tag or commit; give one such as main or v1.0", value=value[:80]
            )
        )
    return value


def _sha256(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError("give the SHA-256 of an earlier upload: 64 characters of 0-9 and a-f")
    return value


class Source(BaseModel):
    """Code without a file part: a script's text, the hash of an earlier upload, or a git repository."""

    model_config = ConfigDict(extra="forbid")

    text: StrictStr | None = None
    bundle: Annotated[StrictStr, AfterValidator(_sha256)] | None = None
    git: Annotated[StrictStr, AfterValidator(_address), Field(min_length=1, max_length=1000)] | None = None
    ref: Annotated[StrictStr, AfterValidator(_ref), Field(min_length=1, max_length=200)] | None = Field(
        None, description="branch, tag or commit; null: the repository's default branch"
    )
    key: Annotated[StrictStr, Field(min_length=1, max_length=128)] | None = Field(
        None, description="secret with the deploy key (ssh) or access token (https) of the repository"
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(each is not None for each in (self.text, self.bundle, self.git)) != 1:
            raise ValueError("give one of text, bundle and git")
        if self.git is None and (self.ref or self.key):
            raise ValueError("ref and key belong to git; give the address of a repository with them")
        if self.key is not None and self.git is not None and self.git.startswith("file:"):
            raise ValueError("a repository in a folder of this server needs no key; leave it out")
        return self


def called(address: str) -> str:
    """What a repository is called: the last part of its address."""
    return re.split(r"[/:]", address.rstrip("/"))[-1].removesuffix(".git") or "code"


def folder_of(address: str) -> Path | None:
    """The folder of a ``file://`` address, without links; None for other addresses."""
    return Path(unquote(urlsplit(address).path)).resolve() if address.startswith("file://") else None


def is_below(place: Path, roots: Iterable[Path]) -> bool:
    """Whether a folder without links is one of these, or in one."""
    return any(place.is_relative_to(root.resolve()) for root in roots)


def is_full_commit(ref: str) -> bool:
    return _FULL_COMMIT.fullmatch(ref) is not None


class GitState(BaseModel):
    """The commit that the code came from: claimed by a client, or fetched from ``url`` by the server itself."""

    model_config = ConfigDict(extra="forbid")

    commit: Annotated[StrictStr, Field(pattern="^[0-9a-f]{40}([0-9a-f]{24})?$")]
    branch: Annotated[StrictStr, AfterValidator(clean_text), Field(min_length=1, max_length=200)] | None = (
        None
    )
    dirty: Annotated[StrictBool, Field(description="the code differs from the commit")] = False
    url: Annotated[StrictStr, AfterValidator(clean_text), Field(min_length=1, max_length=1000)] | None = (
        Field(None, description="where the server fetched it; null: it was uploaded")
    )
