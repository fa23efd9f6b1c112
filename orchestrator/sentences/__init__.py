"""Every sentence about jobs that is made of facts: why they wait, what happened to them, how their attempts ended.

Pages, REST, mail and commands ask here; nothing that is said here is ever stored to be read again, and nothing decides
by it. Importing the package registers the words of all codes.
"""

from orchestrator.sentences import (
    controllers,
    devices,
    endings,
    events,
    notices,
    remarks,
    retries,
    unsupervised,
)
from orchestrator.sentences.table import TABLE, say, say_json

__all__ = [
    "TABLE",
    "controllers",
    "devices",
    "endings",
    "events",
    "notices",
    "remarks",
    "retries",
    "say",
    "say_json",
    "unsupervised",
]
