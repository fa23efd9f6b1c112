"""Reads the packages of a project of Poetry: ``[tool.poetry]`` in pyproject.toml, with the versions of its lock."""

import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from orchestrator.exceptions import Sentence
from orchestrator.jobs.environments.declared import Declared, refused
from orchestrator.spec.packages import read_requirement

FOR_DEVELOPERS = frozenset({"dev", "develop", "doc", "docs", "lint", "test", "testing", "tests", "typing"})
_COMPARED = re.compile(r"(===|==|~=|!=|<=|>=|<|>|\^|~|=)?\s*v?([^\s,|<>=!~^]+)\s*,?\s*")
_EITHER = re.compile(r"\s*\|\|?\s*")
# Where a commit of a git repository stands, in the order in which Poetry looks.
_GIT_REFERENCES = ("rev", "tag", "branch")


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
    found = _Found()
    for group in (listed, *_groups(tool)):
        for package, wanted in group.items():
            if package.lower() != "python":
                _take(found, name, package, wanted)
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
        lines=(*_indexes(tool), *found.lines),
        constraints=constraints_of(lock),
        requires_python=_python_versions(name, listed.get("python")),
        notes=tuple(notes),
    )


def constraints_of(lock: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The versions of a lock of Poetry or PDM, as constraints: what is not needed here is not installed.

    Left out is what comes from elsewhere than an index, and what the lock has in several versions.
    """
    packages = lock.get("package") if lock else None
    versions: dict[str, set[str]] = {}
    for package in packages if isinstance(packages, list) else []:
        if not isinstance(package, Mapping):
            continue
        called, version, source = package.get("name"), package.get("version"), package.get("source")
        kind = source.get("type") if isinstance(source, Mapping) else "legacy"
        if isinstance(called, str) and isinstance(version, str):
            plain = kind == "legacy" and not any(each in package for each in ("path", "url", "git"))
            versions.setdefault(called, set()).add(version if plain else "")
    pinned = ((called, next(iter(each))) for called, each in versions.items() if len(each) == 1)
    return tuple(f"{called}=={version}" for called, version in pinned if _is_version(version))


def specifiers(text: str) -> str:
    """Versions as Poetry writes them, such as ``^1.2``, as pip writes them; the last of ``~1.2 || 2.*``.

    Raises:
        ValueError: it is no such text.
    """
    return _alternatives(text)[-1]


def _alternatives(text: str) -> list[str]:
    return [_specifiers(each) for each in _EITHER.split(text.strip())]


def _python_versions(name: str, wanted: object) -> str:
    """The Pythons that a project allows; of several alternatives the one that holds here."""
    if not isinstance(wanted, str):
        return ""
    try:
        alternatives = _alternatives(wanted)
    except ValueError:
        raise refused(
            Sentence(
                "{origin}: requires-python is {wanted!r}; write versions such as >=3.11.",
                origin=name,
                wanted=wanted[:80],
            )
        ) from None
    here = platform.python_version()
    fitting = (each for each in alternatives if SpecifierSet(each).contains(here, prereleases=True))
    return next(fitting, alternatives[-1])


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
    if version == "*":
        return []
    if sign not in {"^", "~"}:
        return [f"{'==' if sign in {'', '='} else sign}{version}"]
    try:
        release = Version(version.removesuffix(".*")).release
    except InvalidVersion:
        raise ValueError(version) from None
    if sign == "~":
        kept = min(2, len(release))
    else:  # up to the first number that is not 0
        kept = next((at for at, number in enumerate(release, 1) if number), len(release))
    ends = (*release[: kept - 1], release[kept - 1] + 1)
    return [f">={version.removesuffix('.*')}", f"<{'.'.join(map(str, ends))}"]


def requirement(name: str, package: str, wanted: object) -> str:
    """A package of a table of Poetry or Pipenv as a line of a requirements file.

    Raises:
        Malformed: with the package and what it should be.
    """
    table: Mapping[str, Any] = wanted if isinstance(wanted, Mapping) else {"version": wanted}
    try:
        line = _line(package, table)
        read_requirement(line)
    except (ValueError, TypeError):
        raise refused(
            Sentence(
                "{name}: the version or the place of {called!r} cannot be read.",
                name=name,
                called=package[:80],
            )
        ) from None
    return line


def _line(package: str, table: Mapping[str, Any]) -> str:
    extras = f"[{','.join(table['extras'])}]" if table.get("extras") else ""
    if "git" in table:
        reference = next((table[each] for each in (*_GIT_REFERENCES, "ref") if each in table), "")
        below = f"#subdirectory={table['subdirectory']}" if "subdirectory" in table else ""
        place = f" @ git+{_address(table['git'])}{'@' if reference else ''}{reference}{below}"
    elif "url" in table or str(table.get("file", "")).startswith(("https://", "http://")):
        place = f" @ {table.get('url') or table['file']}"
    else:
        place = specifiers(str(table.get("version") or "*"))
    markers = [f"({table['markers']})"] if table.get("markers") else []
    if table.get("python"):
        each = (
            f"python_full_version {one.operator} '{one.version}'"
            for one in SpecifierSet(specifiers(table["python"]))
        )
        markers.append(" and ".join(each))
    if table.get("platform"):
        markers.append(f"sys_platform == '{table['platform']}'")
    markers += [f"{key} {table[key]}" for key in ("sys_platform", "platform_machine") if table.get(key)]
    marker = " and ".join(filter(None, markers))
    return f"{package}{extras}{place}{' ; ' if marker else ''}{marker}"


def _address(text: str) -> str:
    """``git@host:lab/code.git`` as an address with its scheme."""
    hit = re.fullmatch(r"([\w.-]+@[\w.-]+):(?!//)(.+)", text)
    return f"ssh://{hit[1]}/{hit[2]}" if hit else text


def is_local(wanted: object) -> bool:
    """Whether a package lies in a folder or a file of the machine that wrote the list."""
    if not isinstance(wanted, Mapping):
        return False
    file = str(wanted.get("file", ""))
    return "path" in wanted or bool(file and not file.startswith(("https://", "http://")))


def _take(found: _Found, name: str, package: str, wanted: object) -> None:
    for each in wanted if isinstance(wanted, list) else [wanted]:
        if is_local(each):
            found.local.append(package)
        elif isinstance(each, Mapping) and each.get("optional"):
            found.optional.append(package)
        else:
            found.lines.append(requirement(name, package, each))


def _groups(tool: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The further groups that are installed unless somebody says no."""
    groups = tool.get("group")
    for name, group in groups.items() if isinstance(groups, Mapping) else ():
        if name in FOR_DEVELOPERS or not isinstance(group, Mapping) or group.get("optional"):
            continue
        if isinstance(listed := group.get("dependencies"), Mapping):
            yield listed


def _indexes(tool: Mapping[str, Any]) -> Iterator[str]:
    sources = tool.get("source")
    for source in sources if isinstance(sources, list) else []:
        address = source.get("url") if isinstance(source, Mapping) else None
        if isinstance(address, str) and address.startswith(("https://", "http://")):
            yield f"--extra-index-url {address}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
