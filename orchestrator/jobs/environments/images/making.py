"""Makes an image ready for jobs: fetched and laid out by a program in a sandbox, then asked for its Python."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from django.conf import settings

from orchestrator.jobs.environments import building, sources
from orchestrator.jobs.environments.building import Built
from orchestrator.jobs.environments.failures import CannotPrepare
from orchestrator.jobs.environments.images.asking import ask_python
from orchestrator.jobs.environments.images.records import NotPulled, PulledImage, PullRequest
from orchestrator.jobs.environments.lock import Locked
from orchestrator.jobs.launch import interpreters, isolation
from orchestrator.jobs.launch.images import FACTS, NO_SANDBOX, ROOT
from orchestrator.spec.images import DOCKER_HUB, ImageName, read_image
from orchestrator.spec.job_spec import GIB
from orchestrator.store.files.durable import write_durably
from orchestrator.supervisor.sandbox import bwrap

PROGRAM = "orchestrator.jobs.environments.images.pulling"
MOST_S = 4 * 3600.0
_LEAST_FREE_BYTES = GIB
_SHARE_OF_FREE = 0.9


def platform() -> str:
    """What an image is made for."""
    return f"image {os.uname().machine}"


def make(name: str, digest: str, folder: Path, log: Path) -> Built:
    """Fetch an image and put it into its place.

    Args:
        digest: what it has to be, for a job that runs again; empty: what its name leads to now.

    Raises:
        CannotPrepare: it cannot be had, or not here.
    """
    if not isolation.level():
        raise CannotPrepare("sandbox", f"{NO_SANDBOX}; ask an administrator.")
    image = read_image(name)
    if not is_allowed(image):
        raise CannotPrepare("folder", f"{image.path} is in no folder that images may come from.")
    answer = _get(name, image, digest, folder, log)
    env = {key: str(value) for key, value in answer["env"].items()}
    python, version, packages = ask_python(folder / ROOT, env, folder, log)
    facts = {
        "name": name,
        "digest": answer["digest"],
        "env": env,
        "python": python,
        "python_version": version,
        "has_torch": "torch" in packages,
    }
    write_durably(folder / FACTS, json.dumps(facts).encode())
    # Digests of files and of registries stand for different things, so they share no place.
    key = hashlib.sha256(f"{platform()}\n{image.kind}\n{answer['digest']}".encode()).hexdigest()[:40]
    place = settings.HOME.environments.built(key).root
    if not place.is_dir():
        new = folder / "new"
        new.mkdir()
        for part in (ROOT, FACTS):
            (folder / part).rename(new / part)
        place.parent.mkdir(parents=True, exist_ok=True)
        building.move(new, place)
    listed = ({"python": version} if version else {}) | packages
    rows = tuple(Locked(each, listed[each], f"{each}=={listed[each]}") for each in sorted(listed))
    return Built(key, answer["digest"], rows, own_torch="torch" in packages)


def is_allowed(image: ImageName) -> bool:
    """Whether jobs may use it: files of the server are used only where the operator said so."""
    place = Path(os.path.realpath(image.path))
    folders = settings.ENVIRONMENT.image_folders
    return not image.kind or any(place.is_relative_to(folder.resolve()) for folder in folders)


def _get(name: str, image: ImageName, digest: str, folder: Path, log: Path) -> PulledImage:
    """Run the program that fetches; what it says of the image."""
    request: PullRequest = {
        "image": name,
        "digest": digest,
        "folder": str(folder),
        "most_bytes": _most_bytes(folder),
        "allowed": list(settings.ENVIRONMENT.data_allow),
        "login": "" if image.kind else login(image.registry),
    }
    with log.open("a", encoding="utf-8") as errors:
        errors.write(f"$ fetch image {name}\n")
        errors.flush()
        try:
            done = subprocess.run(  # noqa: S603 -- our own program; a login goes through its standard input
                _sandboxed([sys.executable, "-s", "-m", PROGRAM], image, folder),
                input=json.dumps(request).encode(),
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=folder,
                env=_variables(folder),
                timeout=MOST_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise CannotPrepare("network", f"It did not come within {MOST_S / 3600:.0f} hours.") from None
        try:
            answer: PulledImage | NotPulled = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            raise CannotPrepare("network", "The fetching program was stopped.") from None
        if "finished" not in answer:
            errors.write(f"{answer['words']}\n")
            raise CannotPrepare(answer["cause"], answer["words"])
    return answer


def _most_bytes(folder: Path) -> int:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < _LEAST_FREE_BYTES:
        raise CannotPrepare("disk", f"Only {free_bytes / GIB:.1f} GiB are free.")
    room = round(free_bytes * _SHARE_OF_FREE)
    limit = settings.ENVIRONMENT.image_gib * GIB
    return min(limit, room) if limit else room


def _sandboxed(words: Sequence[str], image: ImageName, folder: Path) -> list[str]:
    roots = [*interpreters.roots(sys.executable), str(settings.BASE_DIR)]
    shown = [*sources.readable(), *([Path(image.path)] if image.kind and Path(image.path).exists() else [])]
    launch = interpreters.trial(words[0], roots, isolation.level(), work=folder, read_only=shown)
    return bwrap.tool(launch, words, writable=[folder])


def _variables(folder: Path) -> dict[str, str]:
    """The program's environment: none of Berth's settings, and a home without credentials."""
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(folder),
        "PYTHONPATH": str(settings.BASE_DIR),
        "PYTHONDONTWRITEBYTECODE": "1",
        **sources.passed_on(),
    }


def login(registry: str) -> str:
    """The "user:password" of a registry in the operator's file; empty: none.

    Raises:
        CannotPrepare: the file cannot be read.
    """
    path = settings.ENVIRONMENT.image_logins
    if path is None:
        return ""
    names = ("https://index.docker.io/v1/", DOCKER_HUB) if registry == DOCKER_HUB else (registry,)
    try:
        known = json.loads(path.read_bytes())["auths"]
        found: Mapping[str, str] = next((known[name] for name in names if name in known), {})
        return base64.b64decode(found.get("auth", "")).decode()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CannotPrepare("tool", "The server's file with logins to registries cannot be read.") from None
