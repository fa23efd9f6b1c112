"""What a job asks its environment to hold, before anything is resolved."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from orchestrator.exceptions import Malformed, Sentence

Read = Callable[[str], str | None]  # the text of a file by its name, or None without such a file
OWN = "berth"  # the name of Berth's own environment


@dataclass(frozen=True, slots=True)
class Declared:
    """Packages that a script, a file or a list of options names."""

    origin: str  # for people: train.py, requirements.txt, --with
    lines: tuple[str, ...] = ()  # as in a requirements file
    constraints: tuple[str, ...] = ()
    lock: Mapping[str, str] = field(
        default_factory=dict
    )  # a lock of uv with its project, which uv itself reads
    locked: bool = False  # names a version of every package
    prereleases: bool = False
    requires_python: str = ""
    notes: tuple[str, ...] = ()  # what was left out, for the person who submits
    interpreter: str = (
        ""  # the path of a registered one, on top of whose packages these are; empty: the server's
    )
    image: str = ""  # a container image instead of all this

    def as_json(self) -> Mapping[str, object]:
        """What decides the packages; equal requests share an environment."""
        return {
            "lines": list(self.lines),
            "constraints": list(self.constraints),
            "lock": dict(self.lock),
            "locked": self.locked,
            "prereleases": self.prereleases,
            **({"interpreter": self.interpreter} if self.interpreter else {}),
            **({"image": self.image} if self.image else {}),
        }

    @property
    def is_empty(self) -> bool:
        """Whether it brings no package."""
        return not (self.lines or self.lock or self.interpreter or self.image)

    @property
    def options(self) -> tuple[str, ...]:
        """The lines that say where packages come from."""
        return tuple(line for line in self.lines if line.startswith("-"))


def refused(sentence: str) -> Malformed:
    return Malformed(sentence, fields={"environment": [sentence]})


def check_python(declared: Declared) -> None:
    """Refuse what needs another Python than the one that jobs run with.

    Raises:
        Malformed: with the versions, and what to do.
    """
    wanted, version = declared.requires_python, platform.python_version()
    if not wanted:
        return
    try:
        fits = SpecifierSet(wanted).contains(version, prereleases=True)
    except InvalidSpecifier:
        raise refused(
            Sentence(
                "{origin}: requires-python is {wanted!r}; write versions such as >=3.11.",
                origin=declared.origin,
                wanted=wanted[:80],
            )
        ) from None
    if not fits:
        raise refused(
            Sentence(
                "{origin} asks for Python {wanted}, but this server runs jobs with {version}. Allow that version in requires-python, or use Berth's own packages with --environment {own}.",
                origin=declared.origin,
                wanted=wanted,
                version=version,
                own=OWN,
            )
        )


def is_satisfied_here(declared: Declared) -> bool:
    """Whether Berth's own environment has all of it: such a job needs no other."""
    plain = not (declared.locked or declared.lock or declared.options)
    return (
        plain
        and all(map(_is_installed, declared.lines))
        and not any(map(_speaks_against, declared.constraints))
    )


def _speaks_against(constraint: str) -> bool:
    """Whether a constraint excludes the version of a package that is here."""
    try:
        wanted = Requirement(constraint)
        if wanted.marker is not None and not wanted.marker.evaluate():
            return False
        return not wanted.specifier.contains(metadata.version(wanted.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False
    except InvalidRequirement:
        return True


def _is_installed(line: str) -> bool:
    try:
        wanted = Requirement(line)
        if wanted.marker is not None and not wanted.marker.evaluate():
            return True
        version = metadata.version(wanted.name)
    except (InvalidRequirement, metadata.PackageNotFoundError):
        return False
    return not wanted.extras and not wanted.url and wanted.specifier.contains(version, prereleases=True)
