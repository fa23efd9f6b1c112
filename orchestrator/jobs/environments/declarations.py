"""Reads what code declares about its packages: script headers, locks, project files and lists."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import yaml

from berth.shared.package_lists import PACKAGE_FILES, PROJECT_LOCKS
from orchestrator.exceptions import Sentence
from orchestrator.jobs.environments.declared import Declared, Read, refused
from orchestrator.jobs.environments.pipenv import read_pipfile, read_pipfile_lock
from orchestrator.jobs.environments.poetry import (
    FOR_DEVELOPERS,
    constraints_of,
    indexes_of,
    read_poetry,
    with_poetry,
)
from orchestrator.jobs.environments.requirement_files import read_requirements
from orchestrator.jobs.environments.setup_files import read_dynamic, read_setup_cfg, read_setup_py
from orchestrator.spec.packages import read_requirement

_HEADER = re.compile(r"(?m)^# /// script[ \t]*$\n(?P<content>(?:^#(?:| .*)$\n)*?)^# ///[ \t]*$")
_OPENED = re.compile(r"(?m)^# /// script[ \t]*$")
LARGEST_CONDA_CHARS = 256 << 10  # YAML is read at some 400 kB a second
_CONDA_OWN = re.compile(r"(python|pip)\s*([=<>!~ ].*)?")


def read_file(name: str, read: Read) -> Declared | None:
    """Read the packages that a file declares; None where it declares none.

    Raises:
        Malformed: with the file, the place and what it should be.
    """
    text = read(name)
    if text is None:
        return None
    base = PurePosixPath(name).name
    if base == "setup.py":
        return read_script(name, text) or read_setup_py(name, text, read)
    if base.endswith(".py"):
        return read_script(name, text)
    if base == "uv.lock":
        return _read_uv_lock(name, text, read)
    if base in PROJECT_LOCKS:
        return _read_project(*_project_of(name, read), read)
    if base == "pyproject.toml":
        return _read_project(name, text, read)
    if base == "Pipfile.lock":
        return read_pipfile_lock(name, text)
    if base == "Pipfile":
        return read_pipfile(name, _toml(name, text))
    if base == "setup.cfg":
        return read_setup_cfg(name, text, read)
    if re.fullmatch(r"pylock(\.[^.]+)?\.toml", base):
        return _read_pylock(name, text)
    if base.endswith((".yml", ".yaml")):
        return _read_conda(name, text, read)
    if base.endswith((".txt", ".in")):
        return read_requirements(name, text, read)
    raise refused(
        Sentence(
            "{name!r} is no list of packages; give a file such as {package_files}.",
            name=name[:80],
            package_files=", ".join(PACKAGE_FILES),
        )
    )


def read_script(name: str, text: str) -> Declared | None:
    """Read the inline metadata of a script: the block of comments that begins with ``# /// script``."""
    text = text.lstrip("\ufeff").replace("\r\n", "\n")
    opened = list(_OPENED.finditer(text))
    if not opened:
        return None
    line = text.count("\n", 0, opened[0].start()) + 1
    if len(opened) > 1:
        raise refused(
            Sentence("{name} has {opened} headers '# /// script'; keep one.", name=name, opened=len(opened))
        )
    block = _HEADER.search(text if text.endswith("\n") else f"{text}\n")
    if block is None:
        raise refused(
            Sentence(
                "{name}, line {line}: the header '# /// script' is not closed. Begin each of its lines with '# ', and end it with a line '# ///'.",
                name=name,
                line=line,
            )
        )
    content = "".join(
        row[2:] if row.startswith("# ") else row[1:] for row in block["content"].splitlines(True)
    )
    table = _toml(name, content, first_line=line)
    return _of_table(name, table, table.get("tool"))


def _read_project(name: str, text: str, read: Read) -> Declared | None:
    table = _toml(name, text)
    project, tool = _table(table, "project"), _table(table, "tool")
    poetry = _table(tool, "poetry")
    if project.get("dependencies"):
        lock = _lock_beside(name, read)
        stated = _of_table(name, project, tool)
        sources = indexes_of(name, _table(tool, "pdm").get("source"))
        stated = replace(stated, lines=(*sources, *stated.lines), constraints=constraints_of(lock))
        return with_poetry(stated, poetry, lock)
    found = read_dynamic(name, project, tool, read)
    if found is None and _table(poetry, "dependencies"):
        found = read_poetry(name, poetry, _lock_beside(name, read))
    if found is not None and (found.lines or found.notes):
        return found
    extras = _extras_for_jobs(project)
    return Declared(name, notes=(_left_out(name, extras),)) if extras else None


def _table(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = table.get(name)
    return found if isinstance(found, Mapping) else {}


def _lock_beside(name: str, read: Read) -> Mapping[str, Any] | None:
    """The lock that Poetry or PDM wrote for a project."""
    for lock in PROJECT_LOCKS:
        beside = str(PurePosixPath(name).with_name(lock))
        if (text := read(beside)) is not None:
            return _toml(beside, text)
    return None


def _project_of(lock: str, read: Read) -> tuple[str, str]:
    """The name and the text of the project that a lock belongs to."""
    name = str(PurePosixPath(lock).with_name("pyproject.toml"))
    text = read(name)
    if text is None:
        raise refused(Sentence("{name} needs its pyproject.toml; send that file beside it.", name=lock))
    return name, text


def _extras_for_jobs(project: Mapping[str, Any]) -> list[str]:
    """The names of groups of optional packages that a job may need: not those of the project's developers."""
    groups, dynamic = project.get("optional-dependencies"), project.get("dynamic")
    if not isinstance(groups, Mapping) or (isinstance(dynamic, list) and "dependencies" in dynamic):
        return []
    return sorted(set(groups) - FOR_DEVELOPERS)


def _left_out(name: str, extras: Sequence[str]) -> str:
    named = ", ".join(extras[:5]) + (", ..." if len(extras) > 5 else "")
    return (
        f"{name} has optional packages alone ({named}), and none of them is installed. List what the job needs below "
        "dependencies, or add it with --with PACKAGE."
    )


def _of_table(name: str, table: Mapping[str, Any], tool: object) -> Declared:
    """What ``dependencies`` and ``requires-python`` say, in a script's header as in a project file."""
    listed = table.get("dependencies", [])
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise refused(
            Sentence(
                '{name}: dependencies must be a list of texts, such as ["transformers", "datasets<4"].',
                name=name,
            )
        )
    requires = table.get("requires-python", "")
    if not isinstance(requires, str):
        raise refused(Sentence('{name}: requires-python must be a text, such as ">=3.11".', name=name))
    for each in listed:
        try:
            read_requirement(each)
        except ValueError as error:
            raise refused(Sentence("{name}: {error}.", name=name, error=error)) from None
    return Declared(name, lines=(*_indexes(name, tool), *listed), requires_python=requires)


def _indexes(name: str, tool: object) -> Iterator[str]:
    """The indexes that a table ``[tool.uv]`` adds."""
    uv = tool.get("uv") if isinstance(tool, Mapping) else None
    indexes = uv.get("index", []) if isinstance(uv, Mapping) else []
    for index in indexes if isinstance(indexes, list) else []:
        address = index.get("url") if isinstance(index, Mapping) else None
        if not isinstance(address, str) or not re.fullmatch(r"https?://\S+", address):
            raise refused(
                Sentence("{name}: an index in [tool.uv] needs a url that begins with https://.", name=name)
            )
        yield f"--extra-index-url {address}"


def _read_uv_lock(name: str, text: str, read: Read) -> Declared:
    beside, project = _project_of(name, read)
    lock = _toml(name, text)
    requires = lock.get("requires-python", "")
    return Declared(
        name,
        lines=tuple(_indexes(beside, _toml(beside, project).get("tool"))),
        lock={"uv.lock": text.removeprefix("\ufeff"), "pyproject.toml": project.removeprefix("\ufeff")},
        locked=True,
        requires_python=requires if isinstance(requires, str) else "",
    )


def _read_pylock(name: str, text: str) -> Declared:
    lock = _toml(name, text)
    packages = lock.get("packages")
    if not isinstance(packages, list):
        raise refused(
            Sentence("{name} has no [[packages]]; write it with: uv export --format pylock.toml", name=name)
        )
    requires = lock.get("requires-python", "")
    return Declared(
        name,
        lines=tuple(line for package in packages for line in _pylock_lines(name, package)),
        locked=True,
        requires_python=requires if isinstance(requires, str) else "",
    )


def _pylock_lines(name: str, package: Any) -> Iterator[str]:
    """A package of a lock as a line of a requirements file; a folder is the project itself, which is not installed."""
    if not isinstance(package, Mapping) or not isinstance(package.get("name"), str):
        raise refused(Sentence("{name}: each of its packages needs a name.", name=name))
    if "directory" in package:
        return
    called, marker = package["name"], f" ; {package['marker']}" if package.get("marker") else ""
    if isinstance(vcs := package.get("vcs"), Mapping):
        line = f"{called} @ {vcs.get('type', 'git')}+{vcs.get('url')}@{vcs.get('commit-id')}"
    elif isinstance(archive := package.get("archive"), Mapping):
        line = f"{called} @ {archive.get('url')}"
    else:
        line = f"{called}=={package.get('version')}"
    try:
        read_requirement(f"{line}{marker}")
    except ValueError:
        raise refused(
            Sentence(
                "{name}: the version or the place of {called!r} cannot be read.",
                name=name,
                called=called[:80],
            )
        ) from None
    yield " ".join([f"{line}{marker}", *_pylock_hashes(name, called, package)])


def _pylock_hashes(name: str, called: str, package: Mapping[str, Any]) -> list[str]:
    try:
        found = [
            (kind, digest)
            for file in (*package.get("wheels", []), *filter(None, [package.get("sdist")]))
            for kind, digest in (file.get("hashes") or {}).items()
            if kind in {"sha256", "sha384", "sha512"}
        ]
        # A digest with a line break would begin another line of the list.
        is_sound = all(re.fullmatch(r"[0-9A-Fa-f]+", digest) for _, digest in found)
    except (AttributeError, TypeError):  # no table or text, where one belongs
        found, is_sound = [], False
    if not is_sound:
        raise refused(
            Sentence("{name}: the hashes of {called!r} cannot be read.", name=name, called=called[:80])
        )
    return [f"--hash={kind}:{digest}" for kind, digest in found]


def _read_conda(name: str, text: str, read: Read) -> Declared | None:
    """The part that pip installs; what conda itself would install is named in a note."""
    if len(text) > LARGEST_CONDA_CHARS:
        raise refused(
            Sentence(
                "{name} has more than {most:,} characters, too much for a list of packages.",
                name=name,
                most=LARGEST_CONDA_CHARS,
            )
        )
    try:
        table = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date such as 2024-99-99 is a ValueError
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise refused(
            Sentence(
                "{name}{where} is not YAML: {value}.",
                name=name,
                where=where,
                value=getattr(error, "problem", None) or "it cannot be read",
            )
        ) from None
    listed = table.get("dependencies") if isinstance(table, Mapping) else None
    if not isinstance(listed, list):
        raise refused(
            Sentence("{name} has no list named dependencies; list packages there, below pip:.", name=name)
        )
    by_pip = [row for one in listed if isinstance(one, Mapping) for row in _pip_rows(name, one)]
    by_conda = [one for one in listed if isinstance(one, str) and not _CONDA_OWN.fullmatch(one.strip())]
    notes: tuple[str, ...] = ()
    if by_conda:
        named = ", ".join(by_conda[:5]) + (", ..." if len(by_conda) > 5 else "")
        notes = (
            f"{name}: Berth installs what stands below pip:, not what conda would ({named}). List these below pip: where "
            "they have a wheel; else make the environment with conda or micromamba and have an administrator register "
            "its Python, to which --environment NAME --with PACKAGE adds more.",
        )
    if not by_pip:
        return Declared(name, notes=notes) if notes else None
    found = read_requirements(name, "\n".join(by_pip), read)
    return replace(found, notes=(*notes, *found.notes))


def _pip_rows(name: str, section: Mapping[Any, Any]) -> list[str]:
    rows = section.get("pip") or []
    if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
        raise refused(
            Sentence(
                "{name}: list the packages below pip:, each as a text in a line of its own, such as - datasets>=3.",
                name=name,
            )
        )
    return rows


def _toml(name: str, text: str, *, first_line: int = 0) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, tomllib.TOMLDecodeError):
            told = re.sub(r"line (\d+)", lambda hit: f"line {int(hit[1]) + first_line}", str(error))
        else:
            told = "it nests too deeply, or a number has thousands of digits"
        raise refused(Sentence("{name} cannot be read as TOML: {told}.", name=name, told=told)) from None
