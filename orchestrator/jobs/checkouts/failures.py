"""Why git could not fetch: a cause to decide by, and git's own words."""

import re

LONGEST_WORDS = 500
OTHER_HOST = "a redirect leads to another host, which gets no secret"
# In this order: the first that is found is the cause.
_CAUSES = (
    ("redirected", re.compile(OTHER_HOST)),
    ("size", re.compile(r"File too large|SIGXFSZ|signal 25|[Oo]ut of memory|[Cc]annot allocate memory")),
    ("disk", re.compile(r"No space left on device|Disk quota exceeded|unable to write")),
    (
        "certificate",
        re.compile(
            r"certificate (?:verification failed|problem|subject name|has expired)|unable to get local issuer"
        ),
    ),
    ("host_key", re.compile(r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed")),
    (
        "key_unreadable",
        re.compile(r"Load key .*: (?:invalid|error|incorrect|bad|unknown)|invalid format|libcrypto"),
    ),
    ("key", re.compile(r"Permission denied \(|Authentication failed|could not read (?:Username|Password)")),
    (
        "key",
        re.compile(
            r"HTTP (?:Basic: )?Access denied|The requested URL returned error: 40[13]|Invalid username"
        ),
    ),
    ("ref", re.compile(r"couldn't find remote ref|Could not find remote ref|invalid refspec")),
    ("commit", re.compile(r"not our ref|unadvertised object|did not send all necessary objects")),
    ("folder", re.compile(r"transport '\w+' not allowed|protocol '\w+' is not (?:allowed|supported)")),
    (
        "network",
        re.compile(
            r"Could not resolve host|Temporary failure in name resolution|Name or service not known|Connection (?:refused|reset|"
            r"timed out|closed)|Failed to connect|Network is unreachable|No route to host|Operation timed out|"
            r"timed out|early EOF|non-properly terminated|unexpected disconnect|Operation too slow|SSL_ERROR_SYSCALL|kex_exchange_identification|"
            r"The requested URL returned error: (?:429|5\d\d)|RPC failed"
        ),
    ),
    (
        "repository",
        re.compile(
            r"not appear to be a git repository|[Rr]epository .*not found|[Rr]epository not found|not found: did you|"
            r"The requested URL returned error: 404|does not exist|project you were looking for"
        ),
    ),
)
_NOISE = re.compile(r"^(?:fatal|error|remote|ERROR|warning|From .*):\s*")
_SKIPPED = re.compile(
    r"^(?:Please make sure you have|and the repository exists|$|From |@+|Warning: Permanently added)"
)


class CannotFetch(Exception):
    """Code cannot be fetched; ``retriable`` if only the network was missing."""

    def __init__(self, cause: str, words: str) -> None:
        super().__init__(words)
        self.cause = cause
        self.words = words[:LONGEST_WORDS]

    @property
    def retriable(self) -> bool:
        return self.cause == "network"


def cause_of(output: str, *, has_key: bool) -> CannotFetch:
    """What the output of a failed command means."""
    cause = next((name for name, pattern in _CAUSES if pattern.search(output)), "other")
    if cause == "key":
        cause = "key_refused" if has_key else "key_needed"
    return CannotFetch(cause, _words(output))


def _words(output: str) -> str:
    lines = (_NOISE.sub("", line.strip()) for line in output.splitlines())
    told = [line for line in lines if not _SKIPPED.search(line)]
    text = " ".join(dict.fromkeys(told)) or "no message"
    return text if text.endswith((".", "!", "?")) else f"{text}."
