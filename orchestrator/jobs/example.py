"""The example job that ``demo`` submits and follows in the terminal."""

from collections.abc import Callable

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.core.files.base import ContentFile
from django.utils import timezone

from berth.shared.words import server_command
from orchestrator.exceptions import Impossible, Sentence
from orchestrator.jobs import datasets
from orchestrator.jobs.submission import intake
from orchestrator.models import Dataset, DatasetRoot, Device, Job, JobState
from orchestrator.sentences.waits import say_wait
from orchestrator.spec.job_spec import JobSpec

MOST_RANKS = 2
FOLDER = settings.EXAMPLES


class ExampleJob:
    """Submits ``examples/digits.py`` once there are devices, and prints its progress."""

    def __init__(self, tell: Callable[[str], None], address: str) -> None:
        self.tell, self.address = tell, address
        self.job: Job | None = None
        self.last_line = ""
        self.why = ""

    def ended(self) -> bool:
        """Print what changed in the job; True once it has ended."""
        if self.job is None:
            if Device.objects.exists():
                self.job = submit()
                self.tell(f"Submitted {self.job}: {self.address}jobs/{self.job.pk}")
            return False
        self.job.refresh_from_db()
        self._tell_progress(self.job)
        self.why = self.job.exit_detail or self.job.reason
        return self.job.is_final

    @property
    def succeeded(self) -> bool:
        return self.job is not None and self.job.state == JobState.SUCCEEDED

    def _tell_progress(self, job: Job) -> None:
        parts = [job.state]
        if job.state == JobState.QUEUED:
            now_s = timezone.now().timestamp()
            parts.append(say_wait(job.wait_code, job.wait_facts, now_s=now_s, ahead=job.wait_ahead))
        if job.progress is not None and job.step is not None:
            parts.append(f"step {job.step:,} of {job.total_steps:,} ({job.progress:.0%})")
        if isinstance(loss := job.last_values.get("loss"), int | float):
            parts.append(f"loss {loss:.4f}")
        line = "  ".join(parts)
        if line != self.last_line:
            self.last_line = line
            self.tell(f"  {line}")


def submit(user: User | None = None) -> Job:
    """Register the example dataset for the first admin, and submit the example job for a user, else for that admin."""
    admin = get_user_model().objects.filter(is_superuser=True).order_by("pk").first()
    if admin is None:
        raise Impossible(
            Sentence(
                "There is no admin to submit the example for; create one with {server_command}.",
                server_command=server_command("createsuperuser"),
            )
        )
    DatasetRoot.objects.update_or_create(name="examples", defaults={"path": str(FOLDER / "data")})
    if not Dataset.objects.filter(name="digits", version="1").exists():
        datasets.register(admin, name="digits", version="1", root="examples", path="digits.csv.gz")
    spec = JobSpec(
        name="digits-example",
        entrypoint="digits.py",
        args=["--data", "{dataset:digits}", "--checkpoint-dir", "{checkpoint_dir}"],
        resume_args=["--resume", "{checkpoint}"],
        datasets=["digits@1"],
        gpus=max(1, min(MOST_RANKS, Device.objects.filter(pool=JobSpec().pool).count())),
        tags=["example"],
    )
    script = ContentFile((FOLDER / "digits.py").read_bytes(), name="digits.py")
    return intake.accept(user or admin, spec, script=script).job
