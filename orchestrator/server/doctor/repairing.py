"""Carries repairs out one by one; one that fails is told, and the others go on."""

import errno
from collections.abc import Callable, Iterable

from django.core.exceptions import ObjectDoesNotExist
from django.db import DatabaseError

from orchestrator.exceptions import OrchestratorError
from orchestrator.server.doctor.finding import Finding

FAILURES = (OSError, DatabaseError, ObjectDoesNotExist, OrchestratorError)
NOT_OURS = "Run the doctor as the user who owns it, or do this by hand."
ADVICE = {
    errno.EACCES: NOT_OURS,
    errno.EPERM: NOT_OURS,
    errno.EBUSY: "Something is mounted there; unmount it and run the doctor again.",
    errno.EXDEV: "It lies on another disk; move it by hand.",
    errno.EROFS: "The disk takes no writes; look at its health and run the doctor again.",
    errno.ENOSPC: "The disk is full; add room and run the doctor again.",
}


def repair(findings: Iterable[Finding], tell: Callable[[str], object]) -> None:
    """Repair what can be repaired, with a line for each."""
    for each in findings:
        if each.repair is None:
            continue
        tell(f"{each.number}  {each.sentence} Repair: {each.remedy}.")
        try:
            each.repair()
        except FAILURES as error:
            tell(f"{each.number}  This repair failed: {said(error)}. {advice(error)}")


def said(error: BaseException) -> str:
    """An error in a few words: of a file that it concerns, and nothing of how Python writes it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def advice(error: BaseException) -> str:
    number = error.errno if isinstance(error, OSError) else None
    return ADVICE.get(number or 0, "Do it by hand, or run the doctor again when the cause is gone.")
