"""Notices when nobody would notice the end of a run any more.

The sandbox ends because bubblewrap's pid 1 reaps the run's first process; ranks fail because torchrun reaps them.  A
caretaker that was stopped, from the inside or the outside, would keep its devices for ever.
"""

from orchestrator.supervisor.folder import AttemptFolder
from orchestrator.supervisor.processes import ProcessId, from_record, is_alive, is_over, is_stopped
from orchestrator.supervisor.records import read_record
from orchestrator.supervisor.run import Run

STOPPED_LOOKS = 3  # one a second: a debugger that looks at a process stops it for an instant
OVER_LOOKS = 10


class ReapingWatch:
    """Looks at the caretakers of one run; by looks, not by the clock, because the supervisor itself may be stopped."""

    def __init__(self) -> None:
        self._stopped_looks: dict[str, int] = {}
        self._over_looks = 0

    def check(self, run: Run) -> str | None:
        """A sentence if a caretaker is stopped, or does not notice an end; call it once a second."""
        for name, process in run.caretakers().items():
            looks = self._stopped_looks.get(name, 0) + 1 if is_stopped(process) else 0
            self._stopped_looks[name] = looks
            if looks >= STOPPED_LOOKS:
                return (
                    f"Something stopped {name} (SIGSTOP or a debugger), which must notice when the run's processes "
                    "end, so the run was ended."
                )
        self._over_looks = self._over_looks + 1 if _is_unnoticed(run.init, run.top()) else 0
        if self._over_looks >= OVER_LOOKS:
            return "The run's first process had ended, but the sandbox's pid 1 did not notice, so the run was ended."
        return None


def find_stopped(folder: AttemptFolder) -> list[str]:
    """The caretakers of an attempt that are stopped now, its supervisor included; for who looks from elsewhere."""
    identity, sandbox = read_record(folder.supervisor) or {}, read_record(folder.sandbox) or {}
    rows = {"its supervisor": identity, "bubblewrap": sandbox.get("bwrap"), "its pid 1": sandbox.get("init")}
    if not sandbox.get("level"):
        rows.pop("its pid 1")  # without a sandbox that row is the script's own
    found = {
        name: from_record({"boot_id": identity.get("boot_id"), **row})
        for name, row in rows.items()
        if isinstance(row, dict)
    }
    return [name for name, process in found.items() if process is not None and is_stopped(process)]


def _is_unnoticed(init: ProcessId | None, top: ProcessId | None) -> bool:
    return init is not None and top is not None and is_over(top) and is_alive(init)
