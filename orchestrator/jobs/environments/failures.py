"""Why uv could not make an environment: a cause to decide by, and its own words."""

import re

LONGEST_WORDS = 900
# In this order: the first that is found is the cause.
_CAUSES = (
    ("disk", re.compile(r"No space left on device|Disk quota exceeded")),
    (
        "network",
        re.compile(
            r"client error \(Connect\)|dns error|error sending request|Connection (?:reset|refused)|operation timed out|"
            r"HTTP status server error|error decoding response body|unexpected EOF|Could not connect"
        ),
    ),
    ("python", re.compile(r"requires-python|the current Python version \(")),
    ("unknown", re.compile(r"was not found in the|there (?:is|are) no versions? of|not found in the cache")),
    ("conflict", re.compile(r"No solution found")),
    (
        "compiler",
        re.compile(
            r"\b(?:gcc|g\+\+|cc1|clang|nvcc|cmake|cargo|rustc|gfortran)\b|CUDA_HOME|error: command '|No such file or "
            r"directory: '(?:gcc|cc|cmake)"
        ),
    ),
    ("build", re.compile(r"Failed to build|Build backend|Call to `|no usable wheels|building from source")),
)
_NEEDS_BUILD = re.compile(
    r"Failed to build|Build backend|Call to `|init_fs_encoding|building from source|no usable wheels|--no-build"
)
_NOISE = re.compile(r"^(?:error|cause|  cause):\s*", re.IGNORECASE)
_HEADLINES = ("No solution found when resolving dependencies", "Failed to fetch")


class CannotPrepare(Exception):
    """An environment cannot be made; ``retriable`` if only the network was missing."""

    def __init__(self, cause: str, words: str) -> None:
        super().__init__(words)
        self.cause = cause
        self.words = words[:LONGEST_WORDS]

    @property
    def retriable(self) -> bool:
        return self.cause == "network"


def cause_of(output: str) -> CannotPrepare:
    """What the output of a failed command means."""
    cause = next((name for name, pattern in _CAUSES if pattern.search(output)), "other")
    if cause == "conflict" and not re.search(
        r"\bdepends? on\b", output
    ):  # with nothing but the request itself
        cause = "unknown"
    return CannotPrepare(cause, _words(output, cause))


def needs_build(output: str) -> bool:
    """Whether a command failed because a package has to be built from source."""
    return _NEEDS_BUILD.search(output) is not None


def _words(output: str, cause: str) -> str:
    lines = output.splitlines()
    begin = next((number for number, line in enumerate(lines) if line.lstrip().startswith("error")), 0)
    told = []
    for line in lines[begin:]:
        if line.startswith(("hint:", "warning:")):
            break
        text = _NOISE.sub("", line.strip())
        if text and text not in _HEADLINES:
            told.append(text)
    if cause in {"compiler", "build"}:  # the first line names the package, the last ones the reason
        told = [*told[:1], *told[1:][-4:]]
    return " ".join(told) or "no message"
