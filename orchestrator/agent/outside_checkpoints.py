"""Checkpoints that a script writes outside its checkpoint folder: keep them, or point them out to the owner."""

from django.conf import settings

from orchestrator.facts.events import Happened
from orchestrator.facts.record import Fact, fact
from orchestrator.jobs import lifecycle
from orchestrator.models import Attempt
from orchestrator.store.checkpoints.generations import GenerationStore
from orchestrator.store.checkpoints.outside import OutsideCheckpoint, OutsideWatch, is_named, write_unkept
from orchestrator.store.checkpoints.watcher import Watcher

REPORTED_AFTER_TIMES = 2  # a file written once may be a result or a downloaded model


class OutsideKeeper:
    """Keeps them if the job names no files and does not use its checkpoint folder; otherwise tells the owner once."""

    def __init__(self, attempt: Attempt, watcher: Watcher) -> None:
        self.attempt = attempt
        self.glob: str | None = attempt.job.spec_fields.get("checkpoint_glob")
        self.folder = settings.HOME.job(attempt.job_id)
        self.watcher = watcher
        started = attempt.launched_at or attempt.created_at
        self.watch = OutsideWatch(self.folder, int(started.timestamp() * 1e9))
        self.kept = self._kept_before()
        self.watcher.watch_also(self.kept)
        self.trained_since_ns: int | None = None
        self.shown: list[tuple[str, int]] = []

    def look(self, *, last: bool) -> None:
        if not self.watch.look(last=last) or not self.watch.found:
            return
        known = [each for each in self.watch.found.values() if not is_named(self.glob, each)]
        if self.glob is None and not self._uses_its_folder():
            for each in known:
                if self._is_trained(each):
                    self._keep(each)
        self._point_out([each for each in known if each.paths.isdisjoint(self.kept)])

    def _kept_before(self) -> set[str]:
        """Files of the working folder that an earlier attempt or an earlier agent kept."""
        if self.glob is not None:
            return set()
        paths = set()
        for generation in GenerationStore(self.folder).list():
            inside = [file.path for file in generation.own_files if file.path.startswith("work/")]
            # A checkpoint that is a folder is watched as one.
            is_folder = generation.resume is not None and generation.resume not in inside
            paths.update([generation.resume] if inside and is_folder and generation.resume else inside)
        return paths

    def _uses_its_folder(self) -> bool:
        """Whether the script saves into its checkpoint folder."""
        return any(
            generation.source == "library"
            or any(file.path.startswith("checkpoints/") for file in generation.files)
            for generation in GenerationStore(self.folder).list()
        )

    def _is_trained(self, beside: OutsideCheckpoint) -> bool:
        """Whether the training wrote the file, rather than downloading it at the start."""
        if beside.times >= REPORTED_AFTER_TIMES:
            return True
        if self.trained_since_ns is None:
            at = Attempt.objects.values_list("first_step_at", flat=True).get(pk=self.attempt.pk)
            self.trained_since_ns = int(at.timestamp() * 1e9) if at else None
        return self.trained_since_ns is not None and beside.written_ns > self.trained_since_ns

    def _keep(self, beside: OutsideCheckpoint) -> None:
        if beside.paths <= self.kept:
            return
        is_first = beside.paths.isdisjoint(self.kept)
        self.kept |= beside.paths
        self.watcher.watch_also(self.kept)
        if is_first:
            self._tell(fact(Happened.OUTSIDE_KEPT, path=beside.path), once_for="path")

    def _point_out(self, unkept: list[OutsideCheckpoint]) -> None:
        """Tell the owner once per pattern; the job's page and the command line show the newest count."""
        often = [each for each in unkept if each.times >= REPORTED_AFTER_TIMES]
        shown = [(each.glob, each.times) for each in often]
        if shown == self.shown:
            return
        new = {glob for glob, _ in shown} - {glob for glob, _ in self.shown}
        self.shown = shown
        write_unkept(self.folder, often)
        for each in often:
            if each.glob in new:
                what = fact(Happened.OUTSIDE_NOT_KEPT, path=each.path, times=each.times, glob=each.glob)
                self._tell(what, once_for="glob")

    def _tell(self, what: Fact, *, once_for: str) -> None:
        """Record a fact in the job's history, unless it is there already for this path or pattern."""
        if not self.attempt.job.events.of(what.code, **{once_for: what.facts[once_for]}).exists():
            lifecycle.remark(self.attempt.job, what, actor="agent")
