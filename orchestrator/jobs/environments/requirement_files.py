"""Reads requirements files as pip writes them, with the files and indexes that they name."""

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from urllib.parse import unquote

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from orchestrator.exceptions import Sentence
from orchestrator.jobs.environments.declared import Declared, Read, refused
from orchestrator.spec.packages import read_requirement

_COMMENT = re.compile(r"(^|\s)#.*$")
_HASH = re.compile(r"\s--hash[=\s]\S+")
_OPTION = re.compile(r"(--?[a-z-]+)(?:[=\s]\s*(.*))?")
_URL = re.compile(r"(git\+|hg\+|https?://)")
_LOCAL = re.compile(r"\.{0,2}/|\.$|file:|\.\[")
# As ``pip freeze`` writes what came from a file or folder.
_ON_A_DISK = re.compile(r"([A-Za-z0-9][\w.-]*(?:\[[^\]]*\])?)\s*@\s*file:(\S*?)(?:#\S*)?(\s+;.*)?")
# Where conda builds packages. Of any other folder the package may be private: under its name the index may have another
# person's.
_OF_CONDA = re.compile(r"/(croot|feedstock_root|build_artifacts|conda-bld|bld|abs_\w+|ci_\w+)/|/tmp/build/")
_LONG = {
    "-r": "--requirement",
    "-c": "--constraint",
    "-e": "--editable",
    "-i": "--index-url",
    "-f": "--find-links",
}
_SOURCES = frozenset({"--index-url", "--extra-index-url", "--find-links"})
# What pip does on its own behalf, and uv needs no word for.
_PASSED_OVER = frozenset(
    {"--trusted-host", "--require-hashes", "--prefer-binary", "--use-pep517", "--no-cache-dir", "--upgrade"}
)
MOST_DEEP = 10


@dataclass(slots=True)
class _Found:
    lines: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # Names of packages from files of the machine that wrote the list.
    on_a_disk: list[str] = field(default_factory=list)
    prereleases: bool = False
    taken: set[tuple[str, bool]] = field(default_factory=set)  # files, and whether as constraints


def read_requirements(name: str, text: str, read: Read) -> Declared:
    """Read a requirements file.

    Args:
        read: gives the files that it refers to.

    Raises:
        Malformed: with the file, the line and what it should be.
    """
    found = _Found()
    _take(found, name, text, read, (name,))
    if found.on_a_disk:
        found.notes.append(_told_on_a_disk(name, found.on_a_disk))
    return Declared(
        name,
        lines=tuple(found.lines),
        constraints=tuple(found.constraints),
        prereleases=found.prereleases,
        notes=tuple(found.notes),
    )


def _take(
    found: _Found, name: str, text: str, read: Read, chain: tuple[str, ...], *, constrains: bool = False
) -> None:
    for number, line in _logical_lines(text):
        where = f"{name}, line {number}"
        if line.startswith("-"):
            _take_option(found, name, where, line, read, chain)
        elif _LOCAL.match(line):
            found.notes.append(_left_out(where, line))
        elif matched := _ON_A_DISK.fullmatch(_HASH.sub("", line).strip()):
            if _OF_CONDA.search(matched[2]) is None:
                found.notes.append(_left_out_private(where, line))
                continue
            found.on_a_disk.append(matched[1])
            wanted = matched[1] + _version_of(matched[2]) + (matched[3] or "")
            (found.constraints if constrains else found.lines).append(_checked(where, wanted))
        else:
            (found.constraints if constrains else found.lines).append(_checked(where, line))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, without comments; one that ends in a backslash goes on in the next."""
    begun, first = "", 0
    for number, raw in enumerate(text.lstrip("\ufeff").splitlines(), start=1):
        first = first if begun else number
        line = _COMMENT.sub("", raw)
        if line.endswith("\\"):
            begun += line[:-1] + " "
            continue
        whole, begun = (begun + line).strip(), ""
        if whole:
            yield first, whole
    if begun.strip():
        yield first, begun.strip()


def _take_option(found: _Found, name: str, where: str, line: str, read: Read, chain: tuple[str, ...]) -> None:
    matched = _OPTION.fullmatch(line) or _OPTION.fullmatch(f"{line[:2]} {line[2:]}")
    option, value = (matched[1], (matched[2] or "").strip()) if matched else (line, "")
    option = _LONG.get(option, option)
    if option in {"--requirement", "--constraint"}:
        _take_file(found, name, where, value, read, chain, constrains=option == "--constraint")
    elif option in _SOURCES:
        found.lines.append(f"{option} {_address(where, value)}")
    elif option == "--pre":
        found.prereleases = True
    elif option == "--editable" and _URL.match(value):
        found.lines.append(value)
    elif option == "--editable":
        found.notes.append(_left_out(where, f"-e {value}"))
    elif option not in _PASSED_OVER:
        raise refused(
            Sentence(
                "{where}: Berth does not know the option {option!r}; leave it out.",
                where=where,
                option=option[:40],
            )
        )


def _take_file(
    found: _Found, name: str, where: str, value: str, read: Read, chain: tuple[str, ...], *, constrains: bool
) -> None:
    path = posixpath.normpath(PurePosixPath(name).parent / value)
    text = read(path)
    if text is None:
        raise refused(
            Sentence(
                "{where} names {value!r}, which was not sent with the code; add it beside {name}.",
                where=where,
                value=value[:80],
                name=name,
            )
        )
    if len(chain) > MOST_DEEP or path in chain:
        raise refused(
            Sentence(
                "{where}: files refer to one another more than {most_deep} deep; do they form a circle?",
                where=where,
                most_deep=MOST_DEEP,
            )
        )
    # Files that name one another several times each would be read 40 ** 10 times.
    if (path, constrains) not in found.taken:
        found.taken.add((path, constrains))
        _take(found, path, text, read, (*chain, path), constrains=constrains)


def _address(where: str, value: str) -> str:
    if not value.startswith(("http://", "https://")) or re.search(r"\s", value):
        raise refused(
            Sentence(
                "{where}: {value!r} is not the address of an index; write one that begins with https://.",
                where=where,
                value=value[:80],
            )
        )
    return value


def _checked(where: str, line: str) -> str:
    if _URL.match(line):
        return line
    try:
        read_requirement(_HASH.sub("", line).strip())
    except ValueError as error:
        raise refused(Sentence("{where}: {error}.", where=where, error=error)) from None
    return line


def _left_out(where: str, line: str) -> str:
    return f"{where}: {line[:80]} was left out; the code itself lies in the job's working folder."


def _version_of(path: str) -> str:
    """The version that the name of a wheel has, as a requirement; empty for a folder."""
    try:
        _, version, *_ = parse_wheel_filename(unquote(PurePosixPath(path).name))
    except InvalidWheelFilename:
        return ""
    return f"=={version.public}"


def _left_out_private(where: str, line: str) -> str:
    return (
        f"{where}: {line[:80]} was left out: it is a file of the machine that wrote the list. Put the package's code into "
        "the job's folder, or name a version that the index has."
    )


def _told_on_a_disk(name: str, packages: Sequence[str]) -> str:
    named = ", ".join(packages[:5]) + (", ..." if len(packages) > 5 else "")
    return (
        f"{name} names files that conda made on another machine ({named}); these packages come from the index, in any "
        "version unless the list gives one. Write versions with: pip list --format=freeze > requirements.txt"
    )
