"""What the program that gets an image is asked and answers, and what images say of themselves.

Images come from strangers: their records have what the formats promise, and readers meet anything.
"""

from typing import NotRequired, TypedDict, final


class PullRequest(TypedDict):
    """What the program gets on its standard input."""

    image: str
    digest: str  # empty: whatever the name leads to
    folder: str
    most_bytes: int
    allowed: list[str]  # hosts of the lab's network
    login: str


@final
class PulledImage(TypedDict):
    """What the program answers for an image that is laid out."""

    digest: str
    env: dict[str, str]  # the variables that the image sets
    bytes: int
    finished: bool


@final
class NotPulled(TypedDict):
    """What the program answers for an image that cannot be had."""

    cause: str
    words: str


class ProcessConfig(TypedDict, total=False):
    """How an image's process starts."""

    Env: list[str] | None


class LayerDigests(TypedDict, total=False):
    """The digests of the unpacked layers."""

    diff_ids: list[str] | None


class ImageConfig(TypedDict, total=False):
    """The configuration of an image, as far as Berth reads it."""

    architecture: str
    config: ProcessConfig | None
    rootfs: LayerDigests | None


class Descriptor(TypedDict):
    """A part of an image by its digest."""

    digest: str
    mediaType: NotRequired[str]
    size: NotRequired[int]
    platform: NotRequired[dict[str, str] | None]


class Manifest(TypedDict):
    """The parts of an image, or the manifests of an index."""

    config: Descriptor
    layers: list[Descriptor]
    manifests: NotRequired[list[Descriptor]]
