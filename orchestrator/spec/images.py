"""Names of container images: of a registry, or of a folder or file of the server."""

import posixpath
import re
from dataclasses import dataclass

from orchestrator.exceptions import Sentence

DOCKER_HUB = "docker.io"
LONGEST_NAME = 512
EXAMPLES = "pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime or ghcr.io/lab/train@sha256:..."
# Formats of images as files of the server, as skopeo and podman call them.
LAYOUT, ARCHIVE = "oci", "docker-archive"
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(?::\d{1,5})?", re.ASCII)
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ImageName:
    """What a name stands for: of a registry, or a path of the server with its format."""

    registry: str = ""  # host, and port if one is given
    repository: str = ""
    tag: str = ""
    digest: str = ""  # wins over the tag
    kind: str = ""  # LAYOUT or ARCHIVE; empty: of a registry
    path: str = ""

    @property
    def reference(self) -> str:
        """What the registry is asked for."""
        return self.digest or self.tag


def read_image(text: str) -> ImageName:
    """Read a name, such as ``pytorch/pytorch:2.9.0`` or ``oci:/srv/images/tiny``.

    Raises:
        ValueError: what it should look like.
    """
    kind, _, path = text.partition(":")
    if kind in (LAYOUT, ARCHIVE):
        if not path.startswith("/") or posixpath.normpath(path) != path or path == "/":
            raise ValueError(
                Sentence(
                    "{text!r} names no path of the server; write {kind}:/folder/name",
                    text=text[:80],
                    kind=kind,
                )
            )
        return ImageName(kind=kind, path=path)
    name, at, digest = text.removeprefix("docker://").partition("@")
    first, slash, rest = name.partition("/")
    has_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    registry, repository = (first, rest) if has_host else (DOCKER_HUB, name)
    repository, colon, tag = repository.partition(":")
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    fits = (
        _HOST.fullmatch(registry) is not None
        and all(_PART.fullmatch(part) for part in repository.split("/"))
        and (not colon or _TAG.fullmatch(tag) is not None)
        and (not at or _DIGEST.fullmatch(digest) is not None)
    )
    if not fits:
        raise ValueError(
            Sentence(
                "{text!r} is not the name of an image; write it as {examples}",
                text=text[:80],
                examples=EXAMPLES,
            )
        )
    return ImageName(registry, repository, tag or ("" if digest else "latest"), digest)


def image_text(text: str) -> str:
    """A checked name, as it was written."""
    read_image(text)
    return text
