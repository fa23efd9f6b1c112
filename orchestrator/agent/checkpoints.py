"""Keeps checkpoint generations of a running attempt, in a separate thread because copying takes long."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.models import Max

from orchestrator.agent.outside_checkpoints import OutsideKeeper
from orchestrator.exceptions import OrchestratorError
from orchestrator.facts.events import Happened
from orchestrator.facts.record import Fact, fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.launch.engines import engine_of, order_of
from orchestrator.live import wakeups
from orchestrator.models import Attempt, Checkpoint, ExitKind, Job
from orchestrator.store.checkpoints.collector import Collector, Look
from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.store.checkpoints.manifest import Generation
from orchestrator.store.checkpoints.saves import Save
from orchestrator.store.metrics.step_times import step_at
from orchestrator.supervisor.liveness import Liveness

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
READ_GLOB_EVERY_S = 5.0
LONGEST_PAUSE_S = 60.0
LINES_READ_WITHIN_S = 0.4  # the agent reads four times a second
LAST_WITHIN_S = 60.0
MOST_REPORTED = 3  # checkpoints that were passed over at an attempt's end
PROGRESS_WITHOUT_STEPS_S = 60.0  # a script that saves once and crashes soon must use up its retries
SAME_PLACE_SHARE = 0.1  # of the run time by which two attempts that die at the same place may differ


_locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()


class CheckpointKeeper:
    """Looks for finished checkpoint files once a second while the attempt is live."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        job_folder = settings.HOME.job(attempt.job_id)
        self.store = GenerationStore(job_folder)
        glob = attempt.job.spec_fields.get("checkpoint_glob")
        self.collector = Collector(job_folder, attempt.number, glob, self._step_near)
        self.outside = OutsideKeeper(attempt, self.collector.watcher)
        self.pause_s = LOOK_EVERY_S  # grows while the same files cannot be proven complete
        self.look_again_at = 0.0
        self.read_glob_at = 0.0
        self.refused: list[tuple[Path, tuple[int, int, int] | None]] = []
        self.stopping = threading.Event()
        self.thread: threading.Thread | None = None
        self.ended: tuple[bool, float] | None = None
        self.progressed = False
        # One lock per job: a keeper that was stopped may still copy when the next one begins.
        self.lock = _locks.setdefault(str(attempt.job_id), threading.Lock())

    def begin(self) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
            self.thread.start()

    def stop(self) -> None:
        """Stop looking; a copy under way is finished by its thread."""
        self.stopping.set()

    def finish(self, *, clean: bool, is_done: bool, run_s: float) -> bool | None:
        """Take the last checkpoint of an attempt that ended.

        Args:
            clean: its processes ended by themselves, so the files they closed are complete.
            is_done: it came to its end, so its last save is complete, too.
            run_s: how long it ran.

        Returns:
            Whether the attempt got further than where it began; None while the thread is busy: call again.
        """
        if self.ended is None:
            self.collector.is_done = is_done
            self.ended = clean, run_s
            self.stopping.set()
            self.begin()
        assert self.thread is not None  # noqa: S101  # just begun
        self.thread.join(0.02)  # most attempts have nothing to copy and need not wait for another turn
        return None if self.thread.is_alive() else self.progressed

    def _run(self) -> None:
        try:
            while not self.stopping.wait(LOOK_EVERY_S):
                self._try(partial(self._look, writer_alive=None))
            if self.ended is not None:
                self._try_patiently(partial(self._take_last, *self.ended))
        finally:
            connection.close()

    def _try_patiently(self, act: Callable[[], None]) -> None:
        """Retry for a while: the last checkpoint is worth waiting for disk space and the database."""
        deadline_s = time.monotonic() + LAST_WITHIN_S
        while not self._try(act) and time.monotonic() < deadline_s:
            time.sleep(LOOK_EVERY_S)

    def _try(self, act: Callable[[], None]) -> bool:
        """Run ``act``; False if a retry may help."""
        try:
            with self.lock:
                act()
        except (OSError, DatabaseError, OrchestratorError) as error:
            logger.warning("Keeping checkpoints of %s failed: %s", self.attempt, error)
            return False
        except Exception:  # the thread must continue: the last checkpoint may still be taken
            logger.exception("Keeping checkpoints of %s failed", self.attempt)
        return True

    def _take_last(self, clean: bool, run_s: float) -> None:
        self._look(writer_alive=clean)
        newest = next(iter(self.store.list()), None)
        # Before any hashing: most attempts leave nothing.
        if newest is not None and newest.attempt == self.attempt.number:
            self.progressed = self._is_further(self.store.newest_verified(), run_s)

    def _is_further(self, newest: Generation | None, run_s: float) -> bool:
        """Whether a checkpoint is further than all that earlier attempts reached.

        A script that does not resume writes its early steps in every attempt, which is not progress.
        """
        if newest is None or newest.attempt != self.attempt.number:
            return False
        attempts = Attempt.objects.filter(job_id=self.attempt.job_id)
        reached = attempts.aggregate(Max("resumed_from_step"))["resumed_from_step__max"]
        if newest.step is None:
            return run_s >= PROGRESS_WITHOUT_STEPS_S and not self._is_same_place(run_s)
        return reached is None or newest.step > reached

    def _is_same_place(self, run_s: float) -> bool:
        """Whether the attempt before died after about the same time, and nothing shows that this one went further.

        Without steps in the checkpoint's name the time tells the place; a job that resumes may still be killed as late
        each time, by a leak of memory or by an operator every night.
        """
        if self._went_further():
            return False
        before = Attempt.objects.filter(job_id=self.attempt.job_id, number=self.attempt.number - 1)
        times_s = before.exclude(kind=ExitKind.PREEMPTED).values_list("run_s", flat=True)
        return any(abs(run_s - other_s) <= SAME_PLACE_SHARE * other_s for other_s in times_s)

    def _went_further(self) -> bool:
        """Whether this attempt's log came well beyond those before; without steps, whether the job was seen to resume."""
        attempts = Attempt.objects.filter(job_id=self.attempt.job_id)
        last = attempts.filter(pk=self.attempt.pk).values_list("last_step", flat=True).first()
        reached = attempts.filter(number__lt=self.attempt.number).aggregate(Max("last_step"))[
            "last_step__max"
        ]
        if last is None or reached is None:
            return self._resumes()
        beyond = 0.0 if self._resumes() else SAME_PLACE_SHARE
        return bool(last > (1 + beyond) * reached)

    def _resumes(self) -> bool:
        return Job.objects.filter(pk=self.attempt.job_id, seen_to_resume=True).exists()

    def _look(self, *, writer_alive: bool | None) -> None:
        """Look once; with ``writer_alive`` None the attempt's folder tells whether the writer is alive."""

        def alive() -> bool:
            if writer_alive is not None:
                return writer_alive
            return engine_of(self.attempt).state(order_of(self.attempt)) == Liveness.ALIVE

        last = writer_alive is not None
        self._read_glob(last=last)
        self.outside.look(last=last)
        changed = [] if time.monotonic() < self.look_again_at and not last else self.collector.changed()
        if changed:
            try:
                look = self.collector.take(alive, last=last)
            except Exception:
                # A full disk, or the database: these files are still to be taken.
                self.collector.watcher.forget(changed)
                raise
            if look.refused:
                self._wait_longer(changed)
            else:
                self.pause_s = LOOK_EVERY_S
            self._tell(look, last=last, clean=writer_alive is True)
        self._record()

    def _read_glob(self, *, last: bool) -> None:
        """Read the patterns of the files to keep again: the owner may have changed them."""
        now_s = time.monotonic()
        if now_s < self.read_glob_at and not last:
            return
        self.read_glob_at = now_s + READ_GLOB_EVERY_S
        specs = Job.objects.filter(pk=self.attempt.job_id).values_list("spec_fields", flat=True)
        for spec in specs:  # none if the job was deleted
            self.outside.glob = spec.get("checkpoint_glob")
            self.collector.watcher.watch(self.outside.glob)

    def _tell(self, look: Look, *, last: bool, clean: bool) -> None:
        """Record in the job's history which files are not kept, so that nobody is surprised later."""
        for path in look.left_out:
            what = fact(Happened.FILE_LEFT_OUT, path=_shown(path))
            lifecycle.remark(self.attempt.job, what, actor="agent")
        if last and look.refused:
            newest = next(iter(self.store.list()), None)
            for save in look.refused[-MOST_REPORTED:]:
                lifecycle.remark(self.attempt.job, _refusal(save, newest, clean=clean), actor="agent")

    def _wait_longer(self, changed: list[Path]) -> None:
        """Look less often at files that no process writes and nothing proves complete, instead of copying them each second."""
        self.collector.watcher.forget(changed)
        state = [(path, _state(path)) for path in changed]
        self.pause_s = min(LONGEST_PAUSE_S, self.pause_s * 2) if state == self.refused else LOOK_EVERY_S
        self.refused = state
        self.look_again_at = time.monotonic() + self.pause_s

    def _step_near(self, written_s: float) -> int | None:
        """The step at which a file of this time was written."""
        # The line of that step may not have been read yet; after the end all lines have.
        self.stopping.wait(min(LINES_READ_WITHIN_S, max(0.0, written_s + LINES_READ_WITHIN_S - time.time())))
        metrics = settings.HOME.job(self.attempt.job_id).metrics
        step = step_at(metrics, self.attempt.number, written_s, read_within_s=LINES_READ_WITHIN_S)
        if step is not None:
            return step
        # The run reports progress without numbers: the newest known step is the best estimate.
        return Attempt.objects.values_list("last_step", flat=True).get(pk=self.attempt.pk)

    def _record(self) -> None:
        """Update the table of checkpoints from the generations on disk."""
        on_disk = {generation.name: generation for generation in self.store.list()}
        rows = set(Checkpoint.objects.filter(job_id=self.attempt.job_id).values_list("name", flat=True))
        if on_disk.keys() == rows:
            return
        with transaction.atomic():
            if not Job.objects.filter(pk=self.attempt.job_id).exists():
                return
            Checkpoint.objects.filter(job_id=self.attempt.job_id, name__in=rows - on_disk.keys()).delete()
            Checkpoint.objects.bulk_create(
                (_row(self.attempt, on_disk[name]) for name in on_disk.keys() - rows), ignore_conflicts=True
            )
            wakeups.publish(f"job:{self.attempt.job_id}")


def _state(path: Path) -> tuple[int, int, int] | None:
    """A file's modification time (ns), size and inode; None if it is gone."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _shown(path: str) -> str:
    """The path of a job's file as its script sees it."""
    return path.removeprefix("work/").removeprefix("checkpoints/")


def _refusal(save: Save, newest: Generation | None, *, clean: bool) -> Fact:
    """Why a checkpoint does not count, and which one does."""
    return fact(
        Happened.CHECKPOINT_PASSED_OVER,
        path=_shown(save.path if save.kind == "folder" else save.resume),
        writer_ended_itself=clean,
        newest=newest.name if newest else None,
        newest_step=newest.step if newest else None,
    )


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
