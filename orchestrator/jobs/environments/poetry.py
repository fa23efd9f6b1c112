"""Reads the packages of a project of Poetry: ``[tool.poetry]`` in pyproject.toml, with the versions of its lock."""

import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from orchestrator.exceptions import Sentence
from orchestrator.jobs.environments.declared import Declared, refused
from orchestrator.spec.packages import read_requirement

FOR_DEVELOPERS = frozenset({"dev", "develop", "doc", "docs", "lint", "test", "testing", "tests", "typing"})
LARGEST_LOCK_VERSION = 200  # characters; a version of thousands of digits is none
_COMPARED = re.compile(r"(===|==|~=|!=|<=|>=|<|>|\^|~|=)?\s*v?([^\s,|<>=!~^]+)\s*,?\s*")
_NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?", re.ASCII)
_EITHER = re.compile(r"\s*\|\|?\s*")
# Where a commit of a git repository stands, in the order in which Poetry looks.
_GIT_REFERENCES = ("rev", "tag", "branch")
_OTHER_PLACES = frozenset({"hg", "svn", "bzr"})
# The names of PEP 508 that Pipenv takes as fields of a package.
_MARKERS = (
    "os_name",
    "sys_platform",
    "platform_machine",
    "platform_system",
    "platform_release",
    "platform_version",
    "platform_python_implementation",
    "implementation_name",
    "implementation_version",
    "python_version",
    "python_full_version",
)


@dataclass(slots=True)
class _Found:
    lines: list[str] = field(default_factory=list)
    local: list[str] = field(default_factory=list)  # names of packages that lie in the project's own folder
    optional: list[str] = field(default_factory=list)


def read_poetry(name: str, tool: Mapping[str, Any], lock: Mapping[str, Any] | None) -> Declared | None:
    """Read what ``poetry install`` would install, without what only the project's developers need.

    Args:
        tool: the table ``[tool.poetry]``.
        lock: ``poetry.lock``, whose versions are taken; None without one.

    Returns:
        None where the table lists no packages, as in a project whose packages stand below ``[project]``.

    Raises:
        Malformed: with the file, the package and what it should be.
    """
    listed = tool.get("dependencies")
    if not isinstance(listed, Mapping):
        return None
    found, locked = _Found(), versions_of(lock)
    for group in (listed, *groups_of(tool)):
        for package, wanted in group.items():
            if package.lower() != "python":
                _take(found, name, package, wanted, locked)
    notes = []
    if found.local:
        notes.append(
            f"{name}: {_some(found.local)} lie in folders of the machine that wrote it, and are not installed; what the "
            "upload has is importable anyway."
        )
    if found.optional:
        notes.append(f"{name}: {_some(found.optional)} are optional and not installed; add them with --with.")
    return Declared(
        name,
        lines=(*indexes_of(name, tool.get("source")), *found.lines),
        constraints=constraints_of(lock),
        requires_python=_python_versions(name, listed.get("python")),
        notes=tuple(notes),
    )


def with_poetry(found: Declared, tool: Mapping[str, Any], lock: Mapping[str, Any] | None) -> Declared:
    """A ``[project]`` with what Poetry adds to it: sources, places of its packages, and groups that are not for developers.

    Raises:
        Malformed: with the file, the package and what it should be.
    """
    listed = tool.get("dependencies")
    placed = {
        package: wanted
        for package, wanted in (listed.items() if isinstance(listed, Mapping) else ())
        if isinstance(wanted, Mapping) and wanted.keys() & {"git", "url", "path", "file"}
    }
    added = read_poetry(found.origin, {**tool, "dependencies": placed}, lock)
    if added is None:
        return found
    names = {canonicalize_name(package) for package in placed}
    kept = [
        line
        for line in found.lines
        if line.startswith("-") or canonicalize_name(read_requirement(line).name) not in names
    ]
    return replace(found, lines=(*added.lines, *kept), notes=(*found.notes, *added.notes))


def constraints_of(lock: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The versions of a lock of Poetry or PDM, as constraints: what is not needed here is not installed.

    Any build of a version will do: the lock's own, such as that for one CUDA, may not fit this server.
    """
    return tuple(f"{called}=={version.public}" for called, version in versions_of(lock).items())


def versions_of(lock: Mapping[str, Any] | None) -> Mapping[str, Version]:
    """The version of each package of a lock, by its normalized name.

    Left out is what comes from elsewhere than an index, and what the lock has in several versions.
    """
    packages = lock.get("package") if lock else None
    versions: dict[str, set[str]] = {}
    for package in packages if isinstance(packages, list) else []:
        if not isinstance(package, Mapping):
            continue
        called, version, source = package.get("name"), package.get("version"), package.get("source")
        kind = source.get("type") if isinstance(source, Mapping) else "legacy"
        if isinstance(called, str) and isinstance(version, str) and _NAME.fullmatch(called):
            plain = kind == "legacy" and not any(each in package for each in ("path", "url", "git"))
            versions.setdefault(canonicalize_name(called), set()).add(version if plain else "")
    found = {called: next(iter(each)) for called, each in versions.items() if len(each) == 1}
    return {called: version for called, text in found.items() if (version := _version(text)) is not None}


def _version(text: str) -> Version | None:
    try:
        return Version(text) if len(text) <= LARGEST_LOCK_VERSION else None
    except ValueError:
        return None


def specifiers(text: str, locked: Version | None = None) -> str:
    """Versions as Poetry writes them, such as ``^1.2``, as pip writes them.

    Of ``~1.2 || 2.*`` it is the alternative that the locked version is one of, else the last.

    Raises:
        ValueError: it is no such text.
    """
    alternatives = _alternatives(text)
    fitting = (
        each for each in alternatives if locked and SpecifierSet(each).contains(locked, prereleases=True)
    )
    return next(fitting, alternatives[-1])


def _alternatives(text: str) -> list[str]:
    return [_specifiers(each) for each in _EITHER.split(text.strip())]


def _python_versions(name: str, wanted: object) -> str:
    """The Pythons that a project allows; of several alternatives the one that holds here."""
    if not isinstance(wanted, str):
        return ""
    here = platform.python_version()
    try:
        alternatives = _alternatives(wanted)
        fitting = [each for each in alternatives if SpecifierSet(each).contains(here, prereleases=True)]
    except ValueError:
        raise refused(
            Sentence(
                "{origin}: requires-python is {wanted!r}; write versions such as >=3.11.",
                origin=name,
                wanted=wanted[:80],
            )
        ) from None
    return (fitting or alternatives)[-1]


def _specifiers(text: str) -> str:
    rows, at = [], 0
    text = text.strip()
    while at < len(text):
        hit = _COMPARED.match(text, at)
        if hit is None:
            raise ValueError(text)
        rows += _compared(hit[1] or "", hit[2])
        at = hit.end()
    try:
        return str(SpecifierSet(",".join(rows)))
    except InvalidSpecifier:
        raise ValueError(text) from None


def _compared(sign: str, version: str) -> list[str]:
    version = re.sub(r"(^|\.)[xX](?=\.|$)", r"\1*", version)
    if version == "*":
        return []
    if sign not in {"^", "~"}:
        return [f"{'==' if sign in {'', '='} else sign}{version}"]
    first = Version(version.removesuffix(".*"))
    release = first.release
    if sign == "~":
        kept = min(2, len(release))
    else:  # up to the first number that is not 0
        kept = next((at for at, number in enumerate(release, 1) if number), len(release))
    ends = (*release[: kept - 1], release[kept - 1] + 1)
    return [f">={first.public}", f"<{'.'.join(map(str, ends))}"]


def requirement(name: str, package: str, wanted: object, locked: Version | None = None) -> str:
    """A package of a table of Poetry or Pipenv as a line of a requirements file.

    Args:
        locked: the version that its lock names.

    Raises:
        Malformed: with the package and what it should be.
    """
    table: Mapping[str, Any] = wanted if isinstance(wanted, Mapping) else {"version": wanted}
    try:
        line = _line(package, table, locked)
        read_requirement(line)
        if len(line.splitlines()) != 1:
            raise ValueError(line)
    except (ValueError, TypeError, AttributeError):
        raise refused(
            Sentence(
                "{name}: the version or the place of {called!r} cannot be read.",
                name=name,
                called=package[:80],
            )
        ) from None
    return line


def _line(package: str, table: Mapping[str, Any], locked: Version | None) -> str:
    if table.keys() & _OTHER_PLACES:
        raise ValueError(package)
    extras = [table["extras"]] if isinstance(table.get("extras"), str) else table.get("extras") or []
    if "git" in table:
        reference = next((table[each] for each in (*_GIT_REFERENCES, "ref") if each in table), "")
        below = f"#subdirectory={table['subdirectory']}" if "subdirectory" in table else ""
        place = f" @ git+{_address(table['git'])}{'@' if reference else ''}{reference}{below}"
    elif "url" in table or str(table.get("file", "")).startswith(("https://", "http://")):
        place = f" @ {table.get('url') or table['file']}"
    else:
        place = specifiers(str(table.get("version") or "*"), locked)
    markers = [f"({table['markers']})"] if table.get("markers") else []
    if table.get("python"):
        markers.append(_python_marker(str(table["python"])))
    if table.get("platform"):
        markers.append(f"sys_platform == '{table['platform']}'")
    markers += [f"{key} {table[key]}" for key in _MARKERS if table.get(key)]
    marker = " and ".join(filter(None, markers))
    named = f"[{','.join(extras)}]" if extras else ""
    return f"{package}{named}{place}{' ; ' if marker else ''}{marker}"


def _python_marker(text: str) -> str:
    """``<3.11`` and ``3.9`` mean any patch release, as they do to Poetry; ``3.11.4`` means that one."""
    alternatives = []
    for each in _alternatives(text):
        rows = [
            f"python_{'full_' if one.version.removesuffix('.*').count('.') > 1 else ''}version {one.operator} '{one.version}'"
            for one in SpecifierSet(each)
        ]
        alternatives.append(" and ".join(rows))
    if not all(alternatives):
        return ""
    return f"({' or '.join(alternatives)})" if len(alternatives) > 1 else alternatives[0]


def _address(text: str) -> str:
    """``git@host:lab/code.git`` as an address with its scheme."""
    hit = re.fullmatch(r"([\w.-]+@[\w.-]+):(?!//)(.+)", text)
    return f"ssh://{hit[1]}/{hit[2]}" if hit else text.removeprefix("git+")


def is_local(wanted: object) -> bool:
    """Whether a package lies in a folder or a file of the machine that wrote the list."""
    if not isinstance(wanted, Mapping):
        return False
    file = str(wanted.get("file", ""))
    return "path" in wanted or bool(file and not file.startswith(("https://", "http://")))


def _take(found: _Found, name: str, package: str, wanted: object, locked: Mapping[str, Version]) -> None:
    for each in wanted if isinstance(wanted, list) else [wanted]:
        if is_local(each):
            found.local.append(package)
        elif isinstance(each, Mapping) and each.get("optional"):
            found.optional.append(package)
        else:
            found.lines.append(requirement(name, package, each, locked.get(canonicalize_name(package))))


def groups_of(tool: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The further groups that are installed unless somebody says no."""
    groups = tool.get("group")
    for name, group in groups.items() if isinstance(groups, Mapping) else ():
        if name in FOR_DEVELOPERS or not isinstance(group, Mapping) or group.get("optional"):
            continue
        if isinstance(listed := group.get("dependencies"), Mapping):
            yield listed


def indexes_of(name: str, sources: object) -> Iterator[str]:
    """The indexes of a list of tables with a ``url`` each.

    Raises:
        Malformed: an address is none.
    """
    for source in sources if isinstance(sources, list) else []:
        address = source.get("url") if isinstance(source, Mapping) else None
        if not isinstance(address, str) or not address.startswith(("https://", "http://")):
            continue
        if len(address.split()) != 1:
            raise refused(Sentence("{name}: the address of an index has blanks or line ends.", name=name))
        yield f"--extra-index-url {address}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
