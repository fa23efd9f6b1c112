"""Notices ranks that a signal has stopped: they hold their devices, and nothing else shows it for long."""

from orchestrator.facts.events import Happened
from orchestrator.facts.record import Fact, fact
from orchestrator.supervisor.linux import processes
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import read_record

LOOK_EVERY_S = 5.0
LOOKS = 2  # a shell stops its child for an instant


class HaltWatch:
    """The processes of one attempt on this server."""

    def __init__(self) -> None:
        self._looked_at = float("-inf")
        self._looks: dict[int, int] = {}  # by pid
        self._told: tuple[int, str] | None = None

    def look_in_time(self, folder: AttemptFolder, now_s: float) -> Fact | None:
        """What is new; None between two looks, and where nothing is.

        Args:
            now_s: monotonic clock.
        """
        if now_s - self._looked_at < LOOK_EVERY_S:
            return None
        self._looked_at = now_s
        return self.look(folder)

    def look(self, folder: AttemptFolder) -> Fact | None:
        """Look now; tells the first stopped process, once, and that none is stopped any more."""
        supervisor = processes.from_record(read_record(folder.supervisor))
        if supervisor is None or not processes.is_alive(supervisor):  # or on another server
            return None
        halted = [pid for pid in processes.descendants(supervisor.pid) if processes.is_halted(pid)]
        self._looks = {pid: self._looks.get(pid, 0) + 1 for pid in halted}
        found = next((pid for pid in halted if self._looks[pid] >= LOOKS), None)
        if self._told is None and found is not None:
            self._told = found, processes.name_of(found)
            return fact(Happened.PROCESS_STOPPED, pid=found, name=self._told[1])
        if self._told is not None and not halted:
            (pid, name), self._told = self._told, None
            return fact(Happened.PROCESS_CONTINUED, pid=pid, name=name)
        return None
