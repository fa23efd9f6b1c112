"""Saves the state of a training in the background, and finds the newest that is whole."""

import atexit
import os
import pickle
import re
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import distributed

from training import events
from training.checkpoint import store
from training.checkpoint.host_copy import HostCopy, is_sharded
from training.checkpoint.store import CheckpointError, CheckpointRefused
from training.fault import StopRequest
from training.report import Reporter, default_reporter


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that verified, loaded."""

    state: dict[str, Any]
    step: int
    folder: Path


class Checkpointer:
    """Saves and loads the state of a training; what it loads is always whole.

    ``folder`` defaults to ``BERTH_CHECKPOINT_DIR``, else ``checkpoints``.  State that every rank
    holds alike is written by rank 0: on the other ranks ``save`` returns at once.  State with DTensors
    in it is sharded: every rank writes its part, so all must call ``save`` at the same step.  The
    training waits for a copy in memory; a thread writes and hashes it.  A write that fails (disk
    full) is a ``checkpoint_failed`` event; the older checkpoints stay and the training goes on.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        keep_last: int = 3,
        strategy: str = "single",
        reporter: Reporter | None = None,
    ) -> None:
        self.folder = Path(folder or os.environ.get("BERTH_CHECKPOINT_DIR") or "checkpoints")
        self.keep_last = keep_last
        self.saved_step: int | None = None  # newest step that is whole on disk
        self.stop: StopRequest | None = None
        self._reporter = reporter or default_reporter()
        self._rank = int(os.environ.get("RANK", "0"))
        self._about = {
            "job": os.environ.get("BERTH_JOB_ID"),
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
            "strategy": strategy,
        }
        self._attempt = self._choose_attempt()
        self._copy = HostCopy()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="berth-checkpoint")
        self._writing: Future[None] | None = None
        self._asked_step: int | None = None
        self._group: distributed.ProcessGroup | None = None  # of the writing threads of all ranks
        self.failures = 0  # writes in a row that failed
        self.failure = ""  # why the newest of them did
        self.stall_s = 0.0  # how long the training waited for the newest save
        atexit.register(self.close)

    @property
    def stop_requested(self) -> bool:
        """Whether SIGTERM came since ``save_on_sigterm``."""
        return self.stop is not None and self.stop.stop

    def save_on_sigterm(self) -> None:
        """From now on SIGTERM only sets ``stop_requested``: save at the end of the step, and leave.

        A save inside the handler would catch parameters in the middle of an update.  Call it
        from the main thread.
        """
        self.stop = StopRequest()
        self.stop.listen()

    def allocate(self, state: dict[str, Any]) -> None:
        """Make the buffers for such a state in the background; the first save is faster then.

        The state may change meanwhile, but its tensors must keep their shapes.
        """
        if self._rank == 0 or is_sharded(state):
            self.wait()
            self._writing = self._thread.submit(self._copy.allocate, state)

    def save(self, state: dict[str, Any], step: int) -> None:
        """Copy the state now, write it in the background; waits for an unfinished write first.

        Saving the same step twice in a row does nothing, unless the first of them failed.

        Raises:
            CheckpointError: the state holds something that could not be loaded safely.
        """
        sharded = is_sharded(state)
        if not (sharded or self._rank == 0):
            return
        if step == self._asked_step:
            self.wait()  # it may yet fail
        if step == self._asked_step:
            return
        start_s = time.perf_counter()
        self.wait()
        if sharded and self._group is None:  # what threads agree on must not mix with the training's own
            self._group = distributed.new_group(backend="gloo")
        copy = self._copy.take(state)
        self._asked_step = step
        self.stall_s = time.perf_counter() - start_s
        self._writing = self._thread.submit(self._write, copy, step, self.stall_s)

    @property
    def is_writing(self) -> bool:
        """Whether the newest save is still on its way to the disk."""
        return self._writing is not None and not self._writing.done()

    def wait(self) -> None:
        """Return when nothing is being written."""
        while self._writing is not None:
            try:
                self._writing.result(timeout=1.0)
            except TimeoutError:
                if not self._writing.done():  # else it is the write's own
                    self._reporter.heartbeat()  # a slow disk is no hang
                    continue
                raise
            self._writing = None

    def close(self) -> None:
        """Finish the write under way; nothing can be saved behind it."""
        self.wait()
        self._thread.shutdown()
        if self._group is not None and distributed.is_initialized():
            distributed.destroy_process_group(self._group)
        self._group = None

    def load_latest(
        self, own: dict[str, Any] | None = None, *, begin_anew: bool | None = None
    ) -> Checkpoint | None:
        """The newest checkpoint that verifies: ``BERTH_RESUME_FROM`` first, then the folder's.

        Each damaged one that is skipped is a ``fallback`` event.  None when there are none, or when all
        are damaged and ``begin_anew`` allows to start at step 0; by default it does so only where Berth
        runs us, whose jobs have a setting of that name.  With several ranks in a process group all must
        call it; rank 0 chooses for all.

        The tensors that come back are whole, however they were saved, unless ``own`` is given: the
        state that this rank would save now.  Then they are split as those in it, and its DTensors
        are filled in place; each rank reads only its part.

        Raises:
            CheckpointRefused: the newest that verifies cannot be used by this program.
            CheckpointError: all are damaged.
        """
        if begin_anew is None:
            begin_anew = "BERTH_JOB_ID" in os.environ
        return self._load_first(self._candidates(), own, begin_anew)

    def load(self, folder: Path | str, own: dict[str, Any] | None = None) -> Checkpoint:
        """Load the checkpoint in ``folder``, or the newest in it; ``own`` as above.

        Raises:
            CheckpointRefused: it verifies, but cannot be used by this program.
            CheckpointError: it does not verify.
        """
        path = Path(folder)
        places = (
            [path]
            if (path / store.MANIFEST).exists()
            else [place.folder for place in store.list_places(path)]
        )
        if not places:
            raise CheckpointError(f"{path} holds no checkpoint; give a folder with a {store.MANIFEST}")
        store.verify(places[0])
        return _read(places[0], own)

    def _load_first(
        self, candidates: list[Path], own: dict[str, Any] | None, begin_anew: bool
    ) -> Checkpoint | None:
        together = (
            distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
        )
        if not together:
            return self._find(candidates, own, begin_anew)
        found, failure = None, None
        if self._rank == 0:
            try:
                found = self._find(candidates, own, begin_anew)
            except CheckpointError as error:
                failure = error
        answer: list[Any] = [str(found.folder) if found else None, failure]
        distributed.broadcast_object_list(answer, src=0)
        if answer[1] is not None:  # else the other ranks would wait for one that has ended
            raise answer[1]
        if self._rank == 0 or answer[0] is None:
            return found
        return _read(Path(answer[0]), own)

    def _find(
        self, candidates: list[Path], own: dict[str, Any] | None, begin_anew: bool
    ) -> Checkpoint | None:
        skipped: list[tuple[Path, str]] = []
        found = None
        for folder in candidates:
            try:
                store.verify(folder)
                found = _read(folder, own)
                break
            except CheckpointRefused:
                raise
            except CheckpointError as error:
                skipped.append((folder, str(error)))
        if found is None and not begin_anew:
            _refuse_to_begin_anew(skipped)
        for folder, reason in skipped:
            self._reporter.event(
                events.FALLBACK_EVENT,
                skipped=folder.name,
                reason=reason,
                from_step=_step_of(folder),
                to_step=found.step if found else None,
            )
        if found:
            self._reporter.event(events.RESUMED_EVENT, step=found.step, checkpoint=found.folder.name)
        return found

    def _candidates(self) -> list[Path]:
        folders = [place.folder for place in store.list_places(self.folder)]
        if named := os.environ.get("BERTH_RESUME_FROM"):
            first = Path(named)
            first = first.parent if first.name in (store.STATE, store.MANIFEST) else first
            if first.resolve() != self.folder.resolve():  # else it names them all
                inside = [place.folder for place in store.list_places(first)]
                folders = [*(inside or [first]), *folders]
        return list({folder.resolve(): folder for folder in folders}.values())

    def _choose_attempt(self) -> int:
        """Outside Berth each start is the next attempt, so that its checkpoints are the newest."""
        if number := os.environ.get("BERTH_ATTEMPT"):
            return int(number)
        places = store.list_places(self.folder)
        return places[0].attempt + 1 if places else 1

    def _write(self, state: dict[str, Any], step: int, stall_s: float) -> None:
        start_s = time.perf_counter()
        self._reporter.flush()  # a killed run resumes after this step, and would not report it again
        try:
            place = store.Place(self._attempt, step, self.folder / f"{self._attempt}-{step}")
            self._write_files(place, state)
            if self._rank == 0:
                manifest = store.verify(place.folder)
                store.prune(self.folder, self.keep_last)
        except (OSError, RuntimeError, CheckpointError) as error:  # torch wraps a failed write
            self._asked_step = None
            self.failures, self.failure = self.failures + 1, _cause(error)
            self._reporter.event(events.CHECKPOINT_FAILED_EVENT, step=step, reason=self.failure)
            return
        self.failures, self.saved_step = 0, step
        if self._rank == 0:
            self._reporter.event(
                events.CHECKPOINT_EVENT,
                step=step,
                bytes=sum(entry["size"] for entry in manifest["files"]),
                stall_s=round(stall_s, 6),
                write_s=round(time.perf_counter() - start_s, 6),
            )

    def _write_files(self, place: store.Place, state: dict[str, Any]) -> None:
        if self._group is not None:
            from training.checkpoint import sharded

            sharded.write(place, self._about, state, self._group)
            return

        def write_state(file: BinaryIO) -> None:
            torch.save(state, file)

        store.write(place.folder.parent, place.attempt, place.step, self._about, write_state)


def _refuse_to_begin_anew(skipped: list[tuple[Path, str]]) -> None:
    """Raise where a checkpoint was skipped; what has no checkpoint's name was never one."""
    reasons = [reason for folder, reason in skipped if _step_of(folder) is not None]
    if reasons:
        raise CheckpointError(
            f"No checkpoint in {skipped[0][0].parent} is whole: {'; '.join(reasons)}. Nothing was trained. "
            "Move the damaged ones away to start at step 0, or start without them (resume=False)."
        )


def _read(folder: Path, own: dict[str, Any] | None) -> Checkpoint:
    try:
        state = _read_state(folder, own)
    except Exception as error:
        raise CheckpointRefused(
            f"The checkpoint {folder} is whole, but cannot be resumed from: {_say_refusal(error)}. Nothing was trained. "
            "Use the program and the versions that wrote it, resume from another checkpoint (resume=PATH), or "
            "start without it (resume=False)."
        ) from error
    return Checkpoint(state=state, step=store.read_manifest(folder)["step"], folder=folder)


def _say_refusal(error: Exception) -> str:
    if isinstance(error, CheckpointError):
        return str(error)
    if isinstance(error, pickle.UnpicklingError):  # torch's text tells how to run the code in it
        kind = re.search(r"GLOBAL (\S+)", str(error))
        return (
            f"{store.STATE} holds {kind[1] if kind else 'objects'}, which would run code where it is loaded"
        )
    return f"{store.STATE} cannot be loaded ({type(error).__name__}: {error})"[:500]


def _read_state(folder: Path, own: dict[str, Any] | None) -> dict[str, Any]:
    if (folder / store.INDEX).exists() or (own is not None and is_sharded(own)):
        from training.checkpoint import sharded

        return sharded.read_full(folder) if own is None else sharded.read_into(folder, own)
    state: dict[str, Any] = torch.load(folder / store.STATE, map_location="cpu", weights_only=True)
    return state


def _step_of(folder: Path) -> int | None:
    step = folder.name.rpartition("-")[2]
    return int(step) if step.isdecimal() else None


def _cause(error: BaseException) -> str:
    """What lies under torch's own error, as one line."""
    while (under := error.__cause__ or error.__context__) is not None and not isinstance(error, OSError):
        error = under
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
