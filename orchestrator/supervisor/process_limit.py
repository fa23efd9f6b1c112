"""A limit on processes and threads that the kernel keeps without a control group."""

import os
import resource

from orchestrator.supervisor.processes import ProcessId

# From Linux 5.14 on RLIMIT_NPROC counts what a user has in a user namespace of its own.  Before, it counted everything
# that the user has on the machine: one job would then take the processes of all others, and of Berth.
_COUNTS_BY_NAMESPACE = (5, 14)


def hold_processes(init: ProcessId, most: int) -> bool:
    """Let no more than so many processes and threads be started below a sandbox's init, which has started none yet.

    False where the kernel does not hold a run of its own to that: before 5.14, and for root, whom it never holds.
    """
    if os.getuid() == 0 or _kernel() < _COUNTS_BY_NAMESPACE:
        return False
    try:
        _, hard = resource.prlimit(init.pid, resource.RLIMIT_NPROC)
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(init.pid, resource.RLIMIT_NPROC, (wanted, wanted))
    except OSError:  # it has gone already: bubblewrap failed, and its own words say why
        return False
    return wanted == most


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2] if part.isdigit())
