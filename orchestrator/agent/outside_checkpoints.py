"""What to do with checkpoints that a script writes outside its checkpoint folder: keep them, or point them out."""

from django.conf import settings

from orchestrator.jobs import lifecycle
from orchestrator.models import Attempt
from orchestrator.store.checkpoints import GenerationStore
from orchestrator.store.outside_checkpoints import Beside, BesideWatch, is_named, write_unkept
from orchestrator.store.watcher import Watcher

TOLD_AFTER_TIMES = 2  # a file that is written once may be a result, or a model that was fetched
KEPT_TEXT = "{path} looks like a checkpoint and is kept, though it lies outside the checkpoint folder."
UNKEPT_TEXT = (
    "{path} was written {times} times outside the checkpoint folder and is not kept; keep it from now on with "
    "--checkpoint-glob '{glob}', or with one click on the job's page."
)


class BesideKeeper:
    """Keeps them where the job names no files and uses no checkpoint folder; else tells its owner once."""

    def __init__(self, attempt: Attempt, watcher: Watcher) -> None:
        self.attempt = attempt
        self.glob: str | None = attempt.job.spec_fields.get("checkpoint_glob")
        self.folder = settings.HOME.job(attempt.job_id)
        self.watcher = watcher
        started = attempt.launched_at or attempt.created_at
        self.watch = BesideWatch(self.folder, int(started.timestamp() * 1e9))
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
        """What an earlier attempt, or an agent before this one, has kept of the working folder."""
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
        """Whether the script saves where it was told to."""
        return any(
            generation.source == "library"
            or any(file.path.startswith("checkpoints/") for file in generation.files)
            for generation in GenerationStore(self.folder).list()
        )

    def _is_trained(self, beside: Beside) -> bool:
        """Whether it was written by the training, and not fetched for it to begin with."""
        if beside.times >= TOLD_AFTER_TIMES:
            return True
        if self.trained_since_ns is None:
            at = Attempt.objects.values_list("first_step_at", flat=True).get(pk=self.attempt.pk)
            self.trained_since_ns = int(at.timestamp() * 1e9) if at else None
        return self.trained_since_ns is not None and beside.written_ns > self.trained_since_ns

    def _keep(self, beside: Beside) -> None:
        if beside.paths <= self.kept:
            return
        is_first = beside.paths.isdisjoint(self.kept)
        self.kept |= beside.paths
        self.watcher.watch_also(self.kept)
        if is_first:
            self._tell(KEPT_TEXT.format(path=beside.path), beginning=KEPT_TEXT.format(path=beside.path)[:200])

    def _point_out(self, unkept: list[Beside]) -> None:
        """Tell once for each pattern; the job's page and the command line show the newest count."""
        often = [each for each in unkept if each.times >= TOLD_AFTER_TIMES]
        shown = [(each.glob, each.times) for each in often]
        if shown == self.shown:
            return
        new = {glob for glob, _ in shown} - {glob for glob, _ in self.shown}
        self.shown = shown
        write_unkept(self.folder, often)
        for each in often:
            if each.glob in new:
                text = UNKEPT_TEXT.format(path=each.path, times=each.times, glob=each.glob)
                self._tell(text, beginning="", containing=f"--checkpoint-glob '{each.glob}'")

    def _tell(self, text: str, *, beginning: str, containing: str = "") -> None:
        """Write it into the history, unless it stands there already."""
        events = self.attempt.job.events.filter(actor="agent")
        if not events.filter(reason__startswith=beginning, reason__contains=containing).exists():
            lifecycle.remark(self.attempt.job, text, actor="agent")
