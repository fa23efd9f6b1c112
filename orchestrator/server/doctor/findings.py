"""What a check found, and its repair. A failed repair is reported, and the others continue."""

import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from django.core.exceptions import ObjectDoesNotExist
from django.db import DatabaseError

from orchestrator.exceptions import OrchestratorError


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be so; two findings with the same words are the same.

    ``number`` is that of docs/reliability.md; without a ``repair`` only people can tell what to do.
    """

    number: str
    sentence: str
    remedy: str = ""  # what the repair does, as an imperative
    repair: Callable[[], object] | None = field(default=None, compare=False)


FAILURES = (OSError, DatabaseError, ObjectDoesNotExist, OrchestratorError)
NOT_OURS = "Run doctor as the user who owns it, or repair it by hand."
ADVICE = {
    errno.EACCES: NOT_OURS,
    errno.EPERM: NOT_OURS,
    errno.EBUSY: "Something is mounted there; unmount it and run doctor again.",
    errno.EXDEV: "It is on another disk; move it by hand.",
    errno.EROFS: "The disk is read-only; check its health and run doctor again.",
    errno.ENOSPC: "The disk is full; free some space and run doctor again.",
}


def repair(findings: Iterable[Finding], tell: Callable[[str], object]) -> None:
    """Repair what can be repaired, and report each repair."""
    for finding in findings:
        if finding.repair is None:
            continue
        tell(f"{finding.number}  {finding.sentence} Repair: {finding.remedy}.")
        try:
            finding.repair()
        except FAILURES as error:
            tell(f"{finding.number}  This repair failed: {summary(error)}. {advice(error)}")


def summary(error: BaseException) -> str:
    """An error in one line, with its file but without Python's notation."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def advice(error: BaseException) -> str:
    number = error.errno if isinstance(error, OSError) else None
    return ADVICE.get(number or 0, "Repair it by hand, or fix the cause and run doctor again.")
