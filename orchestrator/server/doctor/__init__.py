"""Checks what must hold (docs/reliability.md, 4.3) in database, folders and processes, and offers the repair."""

import time
from collections.abc import Callable, Iterator

from django.db import DatabaseError

from orchestrator.server.doctor import attempts, database, disk, history, kept, processes, reaping, services
from orchestrator.server.doctor.finding import Finding
from orchestrator.server.doctor.repairing import advice, repair, said

__all__ = ["Finding", "examine", "repair"]

LOOK_AGAIN_AFTER_S = 1.5

CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    database.check_schema,
    database.check_file,
    attempts.check_numbers,
    attempts.check_leases,
    attempts.check_devices,
    attempts.check_budgets,
    history.check_events,
    history.check_errands,
    history.check_keys,
    history.check_waits,
    disk.check_shut_folders,
    disk.check_unknown_folders,
    disk.check_unknown_attempts,
    disk.check_missing_bundles,
    disk.check_missing_checkpoints,
    disk.check_metrics,
    disk.check_room,
    kept.check_shares,
    kept.check_resumes,
    kept.check_logs,
    processes.check_processes,
    reaping.check_reaping,
    services.check_agent,
)


def examine(*, hashes: bool = False) -> list[Finding]:
    """Everything that is wrong, in the order of the checks.

    A server at work changes under the eyes of whoever looks, so what was found must still be so a moment later.

    Args:
        hashes: read every checkpoint and compare it with its manifest; takes 1.3 s a GiB.
    """
    first = _look()
    if first:
        time.sleep(LOOK_AGAIN_AFTER_S)
        again = set(_look())
        first = [each for each in first if each in again]
    return [*first, *(_guarded(disk.check_hashes) if hashes else ())]


def _look() -> list[Finding]:
    first = list(_guarded(database.check_schema))
    if first:  # the other checks would ask for columns that are not there, or cannot be read
        return first
    found = [each for check in CHECKS[1:] for each in _guarded(check)]
    return list(dict.fromkeys(found))  # a damaged database says the same to every check


def _guarded(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """What a check finds; where it cannot look, that is what is found, and the other checks go on."""
    try:
        yield from check()
    except DatabaseError as error:
        yield database.unreadable(error)
    except OSError as error:
        yield Finding("F58", f"A part of the state cannot be looked at: {said(error)}. {advice(error)}")
