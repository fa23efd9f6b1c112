"""What the launch record of a job in an image says of it, or why the job cannot start there."""

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from django.conf import settings

from orchestrator.jobs.launch import driver
from orchestrator.jobs.launch.start import CannotLaunch, Started
from orchestrator.supervisor.sandbox.image import find_program

FACTS = "image.json"
ROOT = "rootfs"
USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NO_SANDBOX = "Jobs in images need bubblewrap, which does not work on this server"
OLDEST_PYTHON = (3, 8)
# The host's programs read these before a sandbox is there.
_OF_LOADERS = ("LD_", "GLIBC_", "GCONV_", "MALLOC_", "DYLD_")
_OURS = ("BERTH_", "TORCHELASTIC_")
_SET_BY_US = frozenset(
    [
        *("HOME", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"),
        *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    ]
)
_LIBRARY_PATH = "LD_LIBRARY_PATH"


@dataclass(frozen=True, slots=True)
class ReadyImage:
    """An image that is laid out."""

    name: str
    digest: str
    root: Path  # its files
    env: Mapping[str, str]  # as it sets them
    python: str  # the path inside; empty: it has none that starts
    python_version: str
    has_torch: bool

    @property
    def path(self) -> str:
        """Where its programs are searched."""
        return self.env.get("PATH") or USUAL_PATH


def read(key: str) -> ReadyImage:
    """An image by its key.

    Raises:
        OSError: it is no longer there.
    """
    place = settings.HOME.environments.built(key).root
    facts = json.loads((place / FACTS).read_bytes())
    return ReadyImage(root=place / ROOT, **facts)


class ImageRecord(TypedDict):
    """``image`` of a launch record; what each field means: docs/protocol.md."""

    root: str
    files: dict[str, str]
    loader: dict[str, str]


@dataclass(frozen=True, slots=True)
class Inside:
    """How a run starts inside of an image."""

    record: ImageRecord
    python: str
    env: dict[str, str]


def inside(image: ReadyImage, run: Started, *, ranks: int, level: int, has_gpu: bool) -> Inside:
    """How a run starts inside of an image.

    Raises:
        CannotLaunch: the image lacks what the job needs, or the server has no sandbox.
    """
    if not level:
        raise CannotLaunch(f"{NO_SANDBOX}.")
    if run["starts_as"] == "command":
        _check_program(image, run["script"])
    else:
        _check_python(image, ranks)
    files = driver.files() if has_gpu else {}
    env = {
        name: value
        for name, value in image.env.items()
        if name not in _SET_BY_US and not name.startswith((*_OF_LOADERS, *_OURS))
    }
    env["PATH"] = f"{image.path}:{driver.PLACE}" if files else image.path
    # torch asks for the name of the user, whom an image need not know.
    env = {"USER": "berth", "LOGNAME": "berth", **env}
    record: ImageRecord = {
        "root": str(image.root),
        "files": files,
        "loader": _loader(image.env, has_driver=bool(files)),
    }
    return Inside(record, image.python or "/usr/bin/python3", env)


def _loader(env: Mapping[str, str], *, has_driver: bool) -> dict[str, str]:
    found = {name: value for name, value in env.items() if name.startswith(_OF_LOADERS)}
    if has_driver:
        found[_LIBRARY_PATH] = ":".join(filter(None, [env.get(_LIBRARY_PATH, ""), str(driver.PLACE)]))
    return found


def _check_program(image: ReadyImage, program: str) -> None:
    if "/" in program or find_program(image.root, program, image.path) is not None:
        return
    raise CannotLaunch(f"The image {image.name} has no program {posixpath.basename(program)} on its PATH.")


def _check_python(image: ReadyImage, ranks: int) -> None:
    if not image.python:
        raise CannotLaunch(
            f"The image {image.name} has no Python that starts; give a command, or use an image with python3."
        )
    version = tuple(int(part) for part in image.python_version.split(".")[:2])
    if version < OLDEST_PYTHON:
        raise CannotLaunch(
            f"The image {image.name} has Python {image.python_version}; scripts and modules need 3.8 or newer. "
            "Start its Python by a command."
        )
    if ranks > 1 and not image.has_torch:
        raise CannotLaunch(
            f"The image {image.name} has no torch, whose torchrun starts several ranks; use one device, a command, "
            "or an image with torch."
        )
