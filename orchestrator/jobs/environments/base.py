"""The server's torch, which environments share: it, what it needs and numpy, by links instead of copies."""

import functools
import hashlib
import platform
import re
import sys
import sysconfig
import zipfile
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from django.conf import settings
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ROOTS = ("torch", "numpy")  # numpy: torch hands tensors to it, and the training library needs it


@dataclass(frozen=True, slots=True)
class Part:
    """An installed distribution of the base."""

    name: str
    version: str
    metadata: str
    entries: tuple[Path, ...]  # its files and folders in site-packages


@dataclass(frozen=True, slots=True)
class Base:
    """What of Berth's own environment other environments may see; not Django or what else the server needs."""

    parts: tuple[Part, ...]

    @property
    def facts(self) -> tuple[str, ...]:
        """What else decides whether an environment on this base still fits."""
        return ()

    @property
    def path_lines(self) -> tuple[str, ...]:
        """Lines of a .pth file that show the base, beside what ``link_into`` makes."""
        return ()

    @property
    def torch(self) -> str | None:
        return self.versions.get("torch")

    @property
    def versions(self) -> dict[str, str]:
        return {part.name: part.version for part in self.parts}

    def torch_alone(self) -> "Base":
        """torch without what it needs, which then comes from the index."""
        bare = [
            replace(part, metadata=_NEEDS.sub("", part.metadata))
            for part in self.parts
            if part.name == "torch"
        ]
        return Base(tuple(bare))

    def link_into(self, folder: Path) -> None:
        """Make a folder for a path of Python that shows the base and nothing else."""
        folder.mkdir(parents=True)
        for part in self.parts:
            for entry in part.entries:
                link = folder / entry.name
                if not link.is_symlink():  # packages of one namespace share a folder
                    link.symlink_to(entry)

    def write_programs(self, folder: Path) -> None:
        """Write the programs that people expect beside their Python."""
        if self.torch is not None:
            torchrun = folder / "torchrun"
            torchrun.write_text(_TORCHRUN)
            torchrun.chmod(0o755)

    def write_stubs(self, folder: Path) -> None:
        """Write a wheel with the metadata of each part, so that the resolver can choose what is there already."""
        folder.mkdir(parents=True, exist_ok=True)
        for part in self.parts:
            stem = f"{part.name.replace('-', '_')}-{part.version}"
            with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"{stem}.dist-info/METADATA", part.metadata)
                wheel.writestr(f"{stem}.dist-info/WHEEL", _WHEEL)
                wheel.writestr(f"{stem}.dist-info/RECORD", "")


_TORCHRUN = '#!/bin/sh\nexec "${0%/*}/python" -m torch.distributed.run "$@"\n'
_NEEDS = re.compile(r"(?m)^Requires-Dist:.*\n")
_WHEEL = "Wheel-Version: 1.0\nGenerator: berth\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
NO_BASE = Base(())


@functools.cache
def server_base() -> Base:
    """The base of this server; empty without torch, so that environments bring their own."""
    names: dict[str, Part] = {}
    pending = list(_ROOTS)
    while pending:
        name = canonicalize_name(pending.pop())
        if name in names:
            continue
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        names[name] = _part(name, found)
        for text in found.requires or ():
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                pending.append(wanted.name)
    return Base(tuple(names[name] for name in sorted(names))) if "torch" in names else NO_BASE


def _part(name: str, found: metadata.Distribution) -> Part:
    root = Path(str(found.locate_file("")))
    tops = {file.parts[0] for file in found.files or () if file.parts[0] not in {"..", "__pycache__"}}
    entries = [root / top for top in sorted(tops) if not top.endswith(".pth")]
    return Part(name, found.version, found.read_text("METADATA") or "", tuple(entries))


def python() -> str:
    """The interpreter that environments are made from: the one that Berth's own environment was made from."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


def platform_key(base: Base, torch_backend: str) -> str:
    """What a built environment depends on beside its lock; another server, Python or torch makes another one."""
    facts = [
        *(platform.python_implementation(), platform.python_version(), sysconfig.get_platform()),
        *(*platform.libc_ver(), python(), torch_backend, str(settings.BASE_DIR)),
        *(f"{part.name}=={part.version} {part.entries[:1]}" for part in base.parts),
        *base.facts,
    ]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def split_local(version: str) -> str:
    """A version without the name of its build: 2.13.0 of 2.13.0+cpu."""
    return re.split(r"\+", version)[0]
