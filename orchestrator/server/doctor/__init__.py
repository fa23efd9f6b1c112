"""Check what must hold (docs/reliability.md, 4.3) in database, folders and processes, and offer repairs."""

import time
from collections.abc import Callable, Iterator

from django.db import DatabaseError

from orchestrator.server.doctor import attempts, database, disk, history, machine, outputs, processes
from orchestrator.server.doctor.findings import Finding, advice, repair, summary

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
    outputs.check_shares,
    outputs.check_resumes,
    outputs.check_logs,
    processes.check_processes,
    processes.check_reaping,
    processes.check_agent,
    processes.check_sessions_port,
    processes.check_ray,
    machine.check_sandbox,
    machine.check_torch,
    machine.check_home,
)


def examine(*, hashes: bool = False) -> list[Finding]:
    """Everything that is wrong, in the order of the checks.

    A running server changes during the checks, so a finding counts only if it is still there a moment later.

    Args:
        hashes: also compare every checkpoint with its manifest; takes 1.3 s per GiB.
    """
    first = _look()
    if first:
        time.sleep(LOOK_AGAIN_AFTER_S)
        second = set(_look())
        first = [finding for finding in first if finding in second]
    return [*first, *(_guarded(disk.check_hashes) if hashes else ())]


def _look() -> list[Finding]:
    first = list(_guarded(database.check_schema))
    if first:  # the other checks need columns that are missing or unreadable
        return first
    findings = [finding for check in CHECKS[1:] for finding in _guarded(check)]
    return list(dict.fromkeys(findings))  # a damaged database fails every check in the same way


def _guarded(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A check's findings; if it fails, that is its finding, and the other checks still run."""
    try:
        yield from check()
    except DatabaseError as error:
        yield database.unreadable(error)
    except OSError as error:
        yield Finding("F58", f"A part of the state cannot be read: {summary(error)}. {advice(error)}")
