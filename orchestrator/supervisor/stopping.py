"""Carries out a stop: one signal to each rank, the grace, then the end of the sandbox.

A rank that is preempted is asked to save as well.  One that saves when it is asked (SIGUSR1), but would die
of SIGTERM, gets that one only when its checkpoint is kept.
"""

import signal

from orchestrator.supervisor.folder import AttemptFolder
from orchestrator.supervisor.orders import StopOrder
from orchestrator.supervisor.processes import ProcessId, handles, is_alive, send_signal
from orchestrator.supervisor.run import Run

_RESCAN_S = 0.2  # for ranks that started after the first look


class Stopping:
    """One stop under way.  Later orders can only shorten the grace; the first reason stays."""

    def __init__(self, order: StopOrder, now_s: float) -> None:
        self.reason = order.reason
        self.heard = False  # a rank whose script had not returned catches SIGTERM: it knows
        self.outlasted_s: float | None = None  # the grace, once a rank that was told had not ended within it
        self._began_s = now_s
        self._deadline_s = now_s + order.grace_s
        self._signalled: set[ProcessId] = set()
        self._saving: set[ProcessId] = set()  # asked to save, and not yet to end
        self._next_scan_s = now_s

    def hurry(self, order: StopOrder, now_s: float) -> None:
        self._deadline_s = min(self._deadline_s, now_s + order.grace_s)
        if order.saved:
            for process in self._saving:
                send_signal(process, signal.SIGTERM)
            self._saving.clear()

    def step(self, run: Run, folder: AttemptFolder, now_s: float) -> None:
        """Signal ranks not signalled yet; end the sandbox where there is nothing to wait for (any more)."""
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
            run.kill()  # still starting: no script could save anything

    def _signal(self, rank: int, process: ProcessId, folder: AttemptFolder) -> None:
        # Asked before the signal is sent: a quick script has saved and finished a moment after it.
        can_hear = handles(process.pid, signal.SIGTERM) and not folder.finished_marker(rank).exists()
        self._signalled.add(process)
        if self.reason == "preempt" and handles(process.pid, signal.SIGUSR1):
            send_signal(process, signal.SIGUSR1)
            if not can_hear:
                self._saving.add(process)
                return
        if send_signal(process, signal.SIGTERM) and can_hear:
            self.heard = True


def ask_for_checkpoint(run: Run) -> None:
    """SIGUSR1 to the ranks that catch it; the others would die of it."""
    for process in run.ranks().values():
        if handles(process.pid, signal.SIGUSR1):
            send_signal(process, signal.SIGUSR1)


def ask_for_stacks(run: Run) -> None:
    """Have the ranks' entry print all stacks into their logs."""
    for process in run.ranks().values():
        if handles(process.pid, signal.SIGUSR2):
            send_signal(process, signal.SIGUSR2)
