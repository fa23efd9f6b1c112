"""Saves the state of a training in the background, and loads the newest intact checkpoint."""

import atexit
import os
import pickle
import re
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import distributed

from training import events
from training.checkpoint import store
from training.checkpoint.host_copy import HostCopy, is_sharded
from training.checkpoint.policy import StopRequest
from training.checkpoint.store import CheckpointError, CheckpointRefused
from training.report import Reporter, default_reporter


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint, loaded; ``state`` is what was saved."""

    state: Any
    step: int
    folder: Path


class Checkpointer:
    """Saves and loads the state of a training; loads only checkpoints that verify.

    ``folder`` defaults to ``BERTH_CHECKPOINT_DIR``, else ``checkpoints``.  Replicated state is written by
    rank 0; on the other ranks ``save`` returns at once.  State that contains DTensors is sharded: every
    rank writes its part, so all must call ``save`` at the same step.  The training waits for a copy in
    memory; a thread writes and hashes it.  A failed write (disk full) is reported as a
    ``checkpoint_failed`` event; older checkpoints stay, and the training continues.
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
        self.saved_step: int | None = None  # newest step written completely
        self.stop: StopRequest | None = None
        self._reporter = reporter or default_reporter()
        self._rank = int(os.environ.get("RANK", "0"))
        self._about: store.About = {
            "job": os.environ.get("BERTH_JOB_ID"),
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
            "strategy": strategy,
        }
        self._attempt = self._choose_attempt()
        self._copy = HostCopy()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="berth-checkpoint")
        self._writing: Future[None] | None = None
        self._requested_step: int | None = None
        self._group: distributed.ProcessGroup | None = None  # connects the writing threads of all ranks
        self.failures = 0  # consecutive failed writes
        self.failure = ""  # reason of the newest one
        self.stall_s = 0.0  # time that the training waited for the newest save
        atexit.register(self.close)

    @property
    def stop_requested(self) -> bool:
        """Whether SIGTERM arrived since ``save_on_sigterm``."""
        return self.stop is not None and self.stop.stop

    def save_on_sigterm(self) -> None:
        """Make SIGTERM only set ``stop_requested``: save at the end of the step, then exit.

        A save inside the handler could catch parameters in the middle of an update.  Call this from the
        main thread.
        """
        self.stop = StopRequest()
        self.stop.listen()

    def allocate(self, state: Mapping[str, object]) -> None:
        """Allocate the buffers for a state in the background, to make the first save faster.

        The state may change in the meantime, but its tensors must keep their shapes.
        """
        if self._rank == 0 or is_sharded(state):
            self.wait()
            self._writing = self._thread.submit(self._copy.allocate, state)

    def save(self, state: Mapping[str, object], step: int) -> None:
        """Copy the state now and write it in the background, after any unfinished write.

        Saving the same step twice in a row does nothing, unless the first save failed.

        Raises:
            CheckpointError: the state contains something that could not be loaded safely.
        """
        sharded = is_sharded(state)
        if not (sharded or self._rank == 0):
            return
        if step == self._requested_step:
            self.wait()  # it may still fail
        if step == self._requested_step:
            return
        start_s = time.perf_counter()
        self.wait()
        if sharded and self._group is None:  # messages of the threads must not mix with the training's
            self._group = distributed.new_group(backend="gloo")
        copy = self._copy.take(state)
        self._requested_step = step
        self.stall_s = time.perf_counter() - start_s
        self._writing = self._thread.submit(self._write, copy, step, self.stall_s)

    @property
    def is_writing(self) -> bool:
        """Whether the newest save is still being written."""
        return self._writing is not None and not self._writing.done()

    def wait(self) -> None:
        """Wait for an unfinished write."""
        while self._writing is not None:
            try:
                self._writing.result(timeout=1.0)
            except TimeoutError:
                if not self._writing.done():  # else the write itself timed out
                    self._reporter.heartbeat()  # so that a slow disk does not look like a hang
                    continue
                raise
            self._writing = None

    def close(self) -> None:
        """Finish an unfinished write; no later save is possible."""
        self.wait()
        self._thread.shutdown()
        if self._group is not None and distributed.is_initialized():
            distributed.destroy_process_group(self._group)
        self._group = None

    def load_latest(
        self, own: Mapping[str, object] | None = None, *, begin_anew: bool | None = None
    ) -> Checkpoint | None:
        """Load the newest checkpoint that verifies, from ``BERTH_RESUME_FROM`` or else from the folder.

        Each damaged checkpoint that is skipped is reported as a ``fallback`` event.  Returns None if there
        are no checkpoints, or if all are damaged and ``begin_anew`` allows starting at step 0; the default
        allows it only in a job of Berth, which has its own setting for this.  With several ranks in a
        process group, all must call this; rank 0 chooses for all.

        The loaded tensors are whole, however they were saved, unless ``own`` is given: the state that this
        rank would save now.  Then tensors are split like those in ``own``, its DTensors are filled in
        place, and each rank reads only its part.

        Raises:
            CheckpointRefused: the newest checkpoint that verifies cannot be used by this program.
            CheckpointError: all checkpoints are damaged.
        """
        if begin_anew is None:
            begin_anew = "BERTH_JOB_ID" in os.environ
        return self._load_first(self._candidates(), own, begin_anew)

    def load(self, folder: Path | str, own: Mapping[str, object] | None = None) -> Checkpoint:
        """Load the checkpoint ``folder``, or the newest one inside it; ``own`` as in ``load_latest``.

        Raises:
            CheckpointRefused: the checkpoint verifies, but cannot be used by this program.
            CheckpointError: the checkpoint does not verify.
        """
        path = Path(folder)
        places = (
            [path]
            if (path / store.MANIFEST).exists()
            else [place.folder for place in store.list_places(path)]
        )
        if not places:
            raise CheckpointError(f"{path} contains no checkpoint; name a folder with a {store.MANIFEST}")
        store.verify(places[0])
        return _read(places[0], own)

    def _load_first(
        self, candidates: list[Path], own: Mapping[str, object] | None, begin_anew: bool
    ) -> Checkpoint | None:
        together = (
            distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
        )
        if not together:
            return self._find(candidates, own, begin_anew)
        checkpoint, failure = None, None
        if self._rank == 0:
            try:
                checkpoint = self._find(candidates, own, begin_anew)
            except CheckpointError as error:
                failure = error
        answer: list[Any] = [str(checkpoint.folder) if checkpoint else None, failure]
        distributed.broadcast_object_list(answer, src=0)
        if answer[1] is not None:  # otherwise the other ranks would wait for rank 0
            raise answer[1]
        if self._rank == 0 or answer[0] is None:
            return checkpoint
        return _read(Path(answer[0]), own)

    def _find(
        self, candidates: list[Path], own: Mapping[str, object] | None, begin_anew: bool
    ) -> Checkpoint | None:
        skipped: list[tuple[Path, str]] = []
        checkpoint = None
        for folder in candidates:
            try:
                store.verify(folder)
                checkpoint = _read(folder, own)
                break
            except CheckpointRefused:
                raise
            except CheckpointError as error:
                skipped.append((folder, str(error)))
        if checkpoint is None and not begin_anew:
            _refuse_damaged(skipped)
        for folder, reason in skipped:
            self._reporter.event(
                events.FALLBACK_EVENT,
                skipped=folder.name,
                reason=reason,
                from_step=_step_of(folder),
                to_step=checkpoint.step if checkpoint else None,
            )
        if checkpoint:
            folder_name = checkpoint.folder.name
            self._reporter.event(events.RESUMED_EVENT, step=checkpoint.step, checkpoint=folder_name)
        return checkpoint

    def _candidates(self) -> list[Path]:
        folders = [place.folder for place in store.list_places(self.folder)]
        if named := os.environ.get("BERTH_RESUME_FROM"):
            first = Path(named)
            first = first.parent if first.name in (store.STATE, store.MANIFEST) else first
            if first.resolve() != self.folder.resolve():  # otherwise our own folder was named
                inside = [place.folder for place in store.list_places(first)]
                folders = [*(inside or [first]), *folders]
        return list({folder.resolve(): folder for folder in folders}.values())

    def _choose_attempt(self) -> int:
        """Choose the attempt number: Berth's, or the next one, so that our checkpoints are the newest."""
        if number := os.environ.get("BERTH_ATTEMPT"):
            return int(number)
        places = store.list_places(self.folder)
        return places[0].attempt + 1 if places else 1

    def _write(self, state: Mapping[str, object], step: int, stall_s: float) -> None:
        start_s = time.perf_counter()
        self._reporter.flush()  # a run killed now resumes after this step, and would not report it again
        try:
            place = store.Place(self._attempt, step, self.folder / f"{self._attempt}-{step}")
            self._write_files(place, state)
            if self._rank == 0:
                manifest = store.verify(place.folder)
                store.prune(self.folder, self.keep_last)
        except (OSError, RuntimeError, CheckpointError) as error:  # torch wraps a failed write
            self._requested_step = None
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

    def _write_files(self, place: store.Place, state: Mapping[str, object]) -> None:
        if self._group is not None:
            from training.checkpoint import sharded

            sharded.write(place, self._about, state, self._group)
            return

        def write_state(file: BinaryIO) -> None:
            torch.save(state, file)

        store.write(place.folder.parent, place.attempt, place.step, self._about, write_state)


def _refuse_damaged(skipped: list[tuple[Path, str]]) -> None:
    """Raise if a checkpoint was skipped; folders without a checkpoint's name do not count."""
    reasons = [reason for folder, reason in skipped if _step_of(folder) is not None]
    if reasons:
        raise CheckpointError(
            f"No checkpoint in {skipped[0][0].parent} is intact: {'; '.join(reasons)}. Nothing was trained. "
            "Move the damaged checkpoints away to start at step 0, or start without them (resume=False)."
        )


def _read(folder: Path, own: Mapping[str, object] | None) -> Checkpoint:
    try:
        state = _read_state(folder, own)
    except Exception as error:
        raise CheckpointRefused(
            f"The checkpoint {folder} is intact, but cannot be resumed from: {_describe_refusal(error)}. Nothing was trained. "
            "Use the program and the versions that wrote it, resume from another checkpoint (resume=PATH), or "
            "start without it (resume=False)."
        ) from error
    return Checkpoint(state=state, step=store.read_manifest(folder)["step"], folder=folder)


def _describe_refusal(error: Exception) -> str:
    if isinstance(error, CheckpointError):
        return str(error)
    if isinstance(error, pickle.UnpicklingError):  # torch's message explains how to run the code in it
        kind = re.search(r"GLOBAL (\S+)", str(error))
        return f"{store.STATE} contains {kind[1] if kind else 'objects'}, which would run code when loaded"
    return f"{store.STATE} cannot be loaded ({type(error).__name__}: {error})"[:500]


def _read_state(folder: Path, own: Mapping[str, object] | None) -> Any:
    if (folder / store.INDEX).exists() or (own is not None and is_sharded(own)):
        from training.checkpoint import sharded

        return sharded.read_full(folder) if own is None else sharded.read_into(folder, own)
    return torch.load(folder / store.STATE, map_location="cpu", weights_only=True)


def _step_of(folder: Path) -> int | None:
    step = folder.name.rpartition("-")[2]
    return int(step) if step.isdecimal() else None


def _cause(error: BaseException) -> str:
    """Return the cause under torch's own error, as one line."""
    while (under := error.__cause__ or error.__context__) is not None and not isinstance(error, OSError):
        error = under
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
