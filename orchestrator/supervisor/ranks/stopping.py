"""Carries out a stop: signals each rank once, waits for the grace, then ends the sandbox.

Preempted ranks are also asked to save (SIGUSR1).  A rank that would die of SIGTERM gets it only after its checkpoint
was kept.
"""

import signal

from orchestrator.supervisor.linux.processes import ProcessId, handles, is_alive, send_signal
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.orders import StopOrder
from orchestrator.supervisor.ranks.run import Run

PROFILE_SIGNAL = signal.SIGRTMIN + 11  # as training.profiling.hook hears it
_SAVES_FIRST = ("preempt", "lease")
_RESCAN_S = 0.2  # for ranks that start later


class Stopping:
    """A stop in progress.  Later orders can only shorten the grace; the first reason stays."""

    def __init__(self, order: StopOrder, now_s: float) -> None:
        self.reason = order.reason
        self.heard = False  # a rank whose script had not returned caught SIGTERM
        self.outlasted_s: float | None = None  # the grace, if a signalled rank outlived it
        self._began_s = now_s
        self._deadline_s = now_s + order.grace_s
        self._signalled: set[ProcessId] = set()
        self._saving: set[ProcessId] = set()  # asked to save, but not yet to end
        self._next_scan_s = now_s

    def hurry(self, order: StopOrder, now_s: float) -> None:
        self._deadline_s = min(self._deadline_s, now_s + order.grace_s)
        if order.saved:
            for process in self._saving:
                send_signal(process, signal.SIGTERM)
            self._saving.clear()

    def step(self, run: Run, folder: AttemptFolder, now_s: float) -> None:
        """Signal ranks that were not signalled yet; end the sandbox once there is nothing to wait for."""
        if now_s >= self._deadline_s:
            if self.outlasted_s is None and any(is_alive(process) for process in self._signalled):
                self.outlasted_s = self._deadline_s - self._began_s
            run.kill()
            return
        if now_s < self._next_scan_s:
            return
        self._next_scan_s = now_s + _RESCAN_S
        for rank, process in run.ranks().items():
            if process not in self._signalled:
                self._signal(rank, process, folder)
        if not self._signalled:
            run.kill()  # still starting: no script has anything to save

    def _signal(self, rank: int, process: ProcessId, folder: AttemptFolder) -> None:
        # Check before sending the signal: a quick script may save and finish right after it.
        can_hear = handles(process.pid, signal.SIGTERM) and not folder.finished_marker(rank).exists()
        self._signalled.add(process)
        if self.reason in _SAVES_FIRST and handles(process.pid, signal.SIGUSR1):
            send_signal(process, signal.SIGUSR1)
            if not can_hear:
                self._saving.add(process)
                return
        if send_signal(process, signal.SIGTERM) and can_hear:
            self.heard = True


def ask_for_checkpoint(run: Run) -> None:
    """Send SIGUSR1 to the ranks that catch it; it would kill the others."""
    for process in run.ranks().values():
        if handles(process.pid, signal.SIGUSR1):
            send_signal(process, signal.SIGUSR1)


def ask_for_profile(run: Run) -> bool:
    """Make the first rank that can profile its next steps; False if none can."""
    for _, process in sorted(run.ranks().items()):
        if handles(process.pid, PROFILE_SIGNAL):
            return send_signal(process, PROFILE_SIGNAL)
    return False


def ask_for_stacks(run: Run) -> None:
    """Make the ranks print all stacks to their logs."""
    for process in run.ranks().values():
        if handles(process.pid, signal.SIGUSR2):
            send_signal(process, signal.SIGUSR2)
