"""Resolves and builds one environment, beside its place; a rename makes it ready."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from django.conf import settings

from orchestrator.jobs.environments import sources
from orchestrator.jobs.environments.base import NO_BASE, Base, platform_key, python, server_base
from orchestrator.jobs.environments.failures import CannotPrepare, cause_of, needs_build
from orchestrator.jobs.environments.lock import Locked, beyond, read_lock, sits_on
from orchestrator.jobs.environments.registered import base_of
from orchestrator.jobs.environments.uv import NO_PYTHON, Uv
from orchestrator.models import Environment
from orchestrator.store.files.untrusted import remove_tree
from orchestrator.store.layout import BuiltEnvironment

_RESOLVE = ("--no-header", "--no-annotate", "--generate-hashes", "--quiet")


@dataclass(frozen=True, slots=True)
class Built:
    key: str
    lock: str
    packages: tuple[Locked, ...]
    own_torch: bool


class Workshop:
    """The folder of one build.

    First uv works in the cache that everybody shares, and builds nothing from source.  Only if that does not do, the
    build has a cache of its own, so that code of a package's setup can harm nobody else's environment.
    """

    def __init__(self, folder: Path, log: Path, interpreter: str = "") -> None:
        self.folder = folder
        self.python = interpreter or python()
        places = settings.HOME.environments
        self.shared = Uv(folder, log, places.cache, places.root, interpreter)
        self.safe = replace(self.shared, extra=NO_PYTHON)
        self.own = Uv(folder, log, folder / "cache", folder, interpreter)
        self.from_source = False

    @property
    def made(self) -> BuiltEnvironment:
        return BuiltEnvironment(self.folder / "new")

    def make_venv(self) -> None:
        """Make the empty environment; the only step that asks the interpreter about itself.

        Raises:
            CannotPrepare: the interpreter cannot be used.
        """
        answer = self.shared.run(
            "venv", "--no-project", "--relocatable", "--quiet", "--python", self.python, self.made.root
        )
        if answer.failed:
            raise cause_of(answer.words)

    def resolve(self, requirements: Path, base: Base, *options: str) -> str:
        """The lock for a requirements file.

        Raises:
            CannotPrepare: with the resolver's words.
        """
        lock = self.folder / "lock.txt"
        # What stands in the file already is taken where nothing speaks against it.
        lock.write_text("".join(f"{name}=={version}\n" for name, version in base.versions.items()))
        words: list[str | Path] = [
            "pip",
            "compile",
            requirements,
            "--output-file",
            lock,
            "--python",
            self.python,
            *_RESOLVE,
            *options,
        ]
        if base.torch is not None:
            constraint = self.folder / "torch.txt"
            constraint.write_text(f"torch=={base.torch}\n")
            words += ["--constraint", constraint]
        safe = NO_PYTHON | self._with_stubs("stubs", base)
        if base.torch is None:
            safe |= sources.for_torch()
        answer = replace(self.safe, extra=safe).run(*words)
        if answer.failed and needs_build(answer.words):
            self.from_source = True
            # What a build itself needs must not be met by a stub, and torch is no part of that.
            torch = self._with_stubs("torch", base.torch_alone())
            if base.torch is None:
                torch |= sources.for_torch()
            answer = replace(self.own, extra=torch).run(*words)
        if answer.failed:
            raise cause_of(answer.words)
        # Our stubs stand for the base's parts, so the hashes are the stubs'.
        lines = (
            f"{each.name}=={each.version}" if each.version == base.versions.get(each.name) else each.line
            for each in read_lock(lock.read_text())
        )
        return "".join(f"{line}\n" for line in lines)

    def _with_stubs(self, name: str, base: Base) -> dict[str, str]:
        """The variables with which the resolver finds the parts of the base as well."""
        folder = self.folder / name
        clear(folder)  # of an earlier attempt: its stubs would be taken for packages that this base lacks
        base.write_stubs(folder)
        known = sources.variables().get("UV_FIND_LINKS")
        # Our stubs come first: of two wheels with one name uv opens the first, and the server's own torch is large.
        return {"UV_FIND_LINKS": ",".join(filter(None, [str(folder), known]))}

    def export(self, lock: Mapping[str, str]) -> str:
        """The packages of a lock of uv, as lines.

        Raises:
            CannotPrepare: the lock does not fit its project.
        """
        project = self.folder / "project"
        project.mkdir()
        for name, text in lock.items():
            (project / name).write_text(text)
        words: list[str | Path] = [
            "export",
            "--frozen",
            "--no-emit-project",
            "--no-dev",
            "--no-header",
            "--no-annotate",
            "--quiet",
        ]
        answer = self.safe.run(
            *words, "--project", project, "--python", self.python, "--format", "requirements.txt"
        )
        if answer.failed:
            raise cause_of(answer.words)
        return answer.words

    def install(self, packages: Sequence[Locked], options: Sequence[str]) -> None:
        """Install exactly these packages.

        Raises:
            CannotPrepare: a package cannot be had or built.
        """
        if not packages:
            return
        wanted = self.folder / "install.txt"
        wanted.write_text("\n".join([*options, *(each.line for each in packages)]) + "\n")
        words: list[str | Path] = [
            "pip",
            "install",
            "--no-deps",
            "--python",
            self.made.python,
            "--requirement",
            wanted,
        ]
        torch = next((each.version for each in packages if each.name == "torch"), None)
        extra = {} if torch is None else sources.for_torch(torch)
        if not self.from_source:
            answer = replace(self.shared, extra=extra).run(*words, "--no-build")
            if not answer.failed:
                return
            if not needs_build(answer.words):
                raise cause_of(answer.words)
            # Without a link to the shared cache in it.
            clear(self.made.root)
            self.make_venv()
        answer = replace(self.own, extra=extra).run(*words)
        if answer.failed:
            raise cause_of(answer.words)

    def furnish(self, base: Base) -> None:
        """Make the base and the training library importable, behind the environment's own packages."""
        made = self.made
        base.link_into(made.base)
        made.library.mkdir(parents=True)
        (made.library / "training").symlink_to(settings.BASE_DIR / "training")
        site = next(made.root.glob("lib/python*/site-packages"))
        lines = [os.path.relpath(folder, site) for folder in (made.base, made.library)]
        lines += base.path_lines
        (site / "_berth.pth").write_text("".join(f"{line}\n" for line in lines))
        base.write_programs(made.python.parent)


def build(
    request: Mapping[str, Any], lock: str, folder: Path, log: Path, tell: Callable[[Sequence[Locked]], None]
) -> Built:
    """Resolve a request, unless it has a lock already, and build it.

    Args:
        tell: called with the packages once they are known.

    Raises:
        CannotPrepare: with uv's words.
    """
    interpreter = request.get("interpreter", "")
    under = base_of(interpreter) if interpreter else None
    shop = Workshop(folder, log, interpreter)
    shop.make_venv()
    lock = lock or _resolve(shop, request, under)
    packages = read_lock(lock)
    tell(packages)
    base = under or (server_base() if sits_on(packages, server_base()) else NO_BASE)
    lines = "\n".join(each.line for each in packages)
    key = hashlib.sha256(f"{platform_of(base)}\n{lines}".encode()).hexdigest()[:40]
    place = settings.HOME.environments.built(key).root
    if not place.is_dir():
        shop.install(beyond(packages, base), _options(request))
        shop.furnish(base)
        place.parent.mkdir(parents=True, exist_ok=True)
        move(shop.made.root, place)
    return Built(key, lock, tuple(packages), own_torch=base is NO_BASE)


def platform_now(row: Environment) -> str:
    """What an environment that is built now for this request and lock would be built for.

    Raises:
        CannotPrepare: its interpreter is gone.
    """
    if row.interpreter:
        return platform_of(base_of(row.interpreter))
    return platform_of(NO_BASE if row.own_torch else server_base())


def platform_of(base: Base) -> str:
    return platform_key(base, sources.torch_key())


def move(made: Path, place: Path) -> None:
    """Put a finished environment into its place; another build of the same may have been quicker."""
    try:
        made.rename(place)
    except OSError:
        if not place.is_dir():
            raise


def _resolve(shop: Workshop, request: Mapping[str, Any], under: Base | None) -> str:
    lines = list(request["lines"])
    if request["lock"]:
        lines = [*lines, *_exported(shop, request["lock"])]
    if request["locked"]:
        return "\n".join(lines) + "\n"
    wanted = shop.folder / "wanted.in"
    wanted.write_text("\n".join(lines) + "\n")
    options = ["--prerelease", "allow"] if request["prereleases"] else []
    if request["constraints"]:
        (shop.folder / "constraints.txt").write_text("\n".join(request["constraints"]) + "\n")
        options += ["--constraint", str(shop.folder / "constraints.txt")]
    return shop.resolve(wanted, under, *options) if under else _on_some_torch(shop, wanted, options)


def _on_some_torch(shop: Workshop, wanted: Path, options: Sequence[str]) -> str:
    """Resolve on the server's torch; what needs another torch brings it."""
    base = server_base()
    try:
        return shop.resolve(wanted, base, *options)
    except CannotPrepare as error:
        if base.torch is None or error.cause not in {"conflict", "unknown"} or "torch" not in error.words:
            raise
    return shop.resolve(wanted, NO_BASE, *options)


def _exported(shop: Workshop, lock: Mapping[str, str]) -> list[str]:
    return [each.line for each in read_lock(shop.export(lock))]


def _options(request: Mapping[str, Any]) -> list[str]:
    return [line for line in request["lines"] if line.startswith("-")]


def clear(folder: Path) -> None:
    """Remove the folder of a build."""
    if folder.exists():
        remove_tree(folder)
