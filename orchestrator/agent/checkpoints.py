"""Keeps checkpoint generations of a running attempt, in a thread of its own: copying gigabytes stops nothing else."""

import logging
import threading
from datetime import UTC, datetime

from django.conf import settings
from django.db import DatabaseError, connection, transaction

from orchestrator import wakeups
from orchestrator.models import Attempt, Checkpoint, Job
from orchestrator.store.checkpoints import GenerationStore
from orchestrator.store.manifest import Generation
from orchestrator.store.watcher import Watcher
from orchestrator.supervisor.liveness import Liveness, liveness

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
KEEP_LAST = 3


class CheckpointKeeper:
    """Looks for finished checkpoint files once a second while the attempt lives."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        job_folder = settings.HOME.job(attempt.job_id)
        self.folder = job_folder.attempt(attempt.number)
        self.store = GenerationStore(job_folder)
        # What lies there when the attempt begins is what was put back, or what an earlier keeper has taken.
        self.watcher = Watcher(job_folder, attempt.job.spec_fields.get("checkpoint_glob"))
        self.stopping = threading.Event()
        self.thread: threading.Thread | None = None

    def begin(self) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
            self.thread.start()

    def stop(self) -> None:
        self.stopping.set()
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def finish(self, *, clean: bool) -> bool:
        """Take the last checkpoint of an attempt that ended; whether it got further than where it began.

        Args:
            clean: its processes ended by themselves, so the files they closed are whole.
        """
        self.stop()
        self._look(writer_alive=clean)
        newest = self.store.newest_verified()
        return newest is not None and newest.attempt == self.attempt.number

    def _run(self) -> None:
        while not self.stopping.wait(LOOK_EVERY_S):
            try:
                self._look(writer_alive=None)
            except (OSError, DatabaseError) as error:
                logger.warning("Keeping checkpoints of %s failed, trying again: %s", self.attempt, error)
        connection.close()

    def _look(self, *, writer_alive: bool | None) -> None:
        """One look; ``writer_alive`` None asks the attempt's folder."""

        def alive() -> bool:
            return liveness(self.folder) == Liveness.ALIVE if writer_alive is None else writer_alive

        changed = self.watcher.poll()
        if changed:
            taken = self.store.capture(self.watcher.files(), self.attempt.number, self._step(), alive)
            if taken is None:
                self.watcher.forget(changed)
            else:
                self.store.prune(KEEP_LAST)
        self._record()

    def _step(self) -> int | None:
        return Attempt.objects.values_list("last_step", flat=True).get(pk=self.attempt.pk)

    def _record(self) -> None:
        """Bring the table of checkpoints in step with what is on disk."""
        found = {generation.name: generation for generation in self.store.list()}
        known = set(Checkpoint.objects.filter(job_id=self.attempt.job_id).values_list("name", flat=True))
        if found.keys() == known:
            return
        with transaction.atomic():
            if not Job.objects.filter(pk=self.attempt.job_id).exists():
                return
            Checkpoint.objects.filter(job_id=self.attempt.job_id, name__in=known - found.keys()).delete()
            Checkpoint.objects.bulk_create(
                (_row(self.attempt, found[name]) for name in found.keys() - known), ignore_conflicts=True
            )
            wakeups.publish(f"job:{self.attempt.job_id}")


def _row(attempt: Attempt, generation: Generation) -> Checkpoint:
    return Checkpoint(
        job_id=attempt.job_id,
        attempt_number=generation.attempt,
        step=generation.step,
        name=generation.name,
        source=generation.source,
        size_bytes=generation.size_bytes,
        created_at=datetime.fromtimestamp(generation.created_s, UTC),
    )
