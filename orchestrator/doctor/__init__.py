"""Checks what must hold (docs/reliability.md, 4.3) in database, folders and processes, and offers the repair."""

import time
from collections.abc import Callable, Iterator

from orchestrator.doctor import attempts, database, disk, history, kept, processes
from orchestrator.doctor.finding import Finding

__all__ = ["Finding", "examine"]

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
)


def examine(*, hashes: bool = False) -> list[Finding]:
    """Everything that is wrong, in the order of the checks.

    A server at work changes under the eyes of whoever looks, so what was found must still be so a moment later.

    Args:
        hashes: read every checkpoint and compare it with its manifest; takes 1.3 s a GiB.
    """
    first = _look(hashes=False)
    if first:
        time.sleep(LOOK_AGAIN_AFTER_S)
        again = set(_look(hashes=False))
        first = [each for each in first if each in again]
    return [*first, *(disk.check_hashes() if hashes else ())]


def _look(*, hashes: bool) -> list[Finding]:
    schema = list(database.check_schema())
    if schema:  # the other checks would ask for columns that are not there
        return schema
    return [found for check in CHECKS[1:] for found in check()]
