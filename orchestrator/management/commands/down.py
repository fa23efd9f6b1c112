"""``manage.py down``: stop Berth and its trainings, which resume at the next start."""

import fcntl
import os
import signal
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import connection

from berth.shared import words
from orchestrator.exceptions import Conflict
from orchestrator.jobs import lifecycle
from orchestrator.jobs.launch import launcher
from orchestrator.live import wakeups
from orchestrator.models import LOCAL_NODE, Attempt
from orchestrator.server.operation import leftovers
from orchestrator.supervisor.liveness import Liveness, liveness

WAIT_FOR_UP_S = 20.0


class Command(BaseCommand):
    help = "Stop Berth and all trainings; they are queued again and resume from their checkpoints."

    def handle(self, *args: Any, **options: Any) -> None:
        self._stop_up()
        if not _is_locked(
            settings.HOME.root / "up.lock"
        ):  # a locked file: they belong to an `up` that is still stopping
            leftovers.end(settings.HOME, self.stdout.write)
        if Attempt._meta.db_table not in connection.introspection.table_names():
            self.stdout.write(f"Berth was never started in {settings.HOME.root}; there is nothing to stop.")
            return
        attempts = list(Attempt.objects.live().select_related("job"))
        longest_s = 0.0
        for attempt in attempts:
            grace_s = float(attempt.job.spec_fields.get("grace_period_s", 30.0))
            longest_s = max(longest_s, grace_s)
            try:
                with wakeups.withheld():  # the listeners are down, and the next start looks by itself
                    lifecycle.shut_down(attempt.job, by="operator")
            except Conflict:
                continue  # it has just ended
            launcher.stop(attempt, reason="shutdown", grace_s=grace_s)
        if attempts:
            self.stdout.write(
                f"Stopping {words.plural(len(attempts), 'training')}, at most {longest_s:.0f} s ..."
            )
        deadline = time.monotonic() + longest_s + 15
        elsewhere = [attempt for attempt in attempts if attempt.nodes or attempt.node != LOCAL_NODE]
        remaining = [attempt for attempt in attempts if not attempt.nodes and attempt.node == LOCAL_NODE]
        while remaining and time.monotonic() < deadline:
            remaining = [attempt for attempt in remaining if _runs(attempt)]
            time.sleep(0.1)
        if remaining:
            self.stdout.write(
                f"{words.plural(len(remaining), 'training')} still stopping; the supervisors finish that on their own."
            )
        if elsewhere:
            self.stdout.write(
                f"{words.plural(len(elsewhere), 'training')} on other servers; the next start stops what still runs there."
            )
        self.stdout.write("Berth has stopped.")

    def _stop_up(self) -> None:
        path = settings.HOME.root / "up.lock"
        if not _is_locked(path):
            return
        # The lock is held, so its pid is that of a running `up`.
        pid = path.read_text()
        if pid.isdigit():  # no pid: it is just starting or stopping
            os.kill(int(pid), signal.SIGTERM)
        deadline = time.monotonic() + WAIT_FOR_UP_S
        while _is_locked(path) and time.monotonic() < deadline:
            time.sleep(0.1)


def _is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    with path.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _runs(attempt: Attempt) -> bool:
    folder = settings.HOME.job(attempt.job_id).attempt(attempt.number)
    if not folder.root.exists():
        return False
    return liveness(folder) in {Liveness.ALIVE, Liveness.UNKNOWN, Liveness.DYING}
