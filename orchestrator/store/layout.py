"""Where everything lies under ``BERTH_HOME``."""

from dataclasses import dataclass
from pathlib import Path

from orchestrator.supervisor.protocol.folder import AttemptFolder


@dataclass(frozen=True, slots=True)
class JobFolder:
    """``jobs/<job id>/``: one for all attempts of a job."""

    root: Path

    @property
    def work(self) -> Path:
        """The working folder, a writable copy of the bundle, at the same path in every attempt."""
        return self.root / "work"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def output(self) -> Path:
        return self.root / "output"

    @property
    def generations(self) -> Path:
        """Copies of checkpoints; not visible to the run."""
        return self.root / "generations"

    @property
    def metrics(self) -> Path:
        """Metric columns: a folder an attempt, and the journal that maps seq to positions."""
        return self.root / "metrics"

    @property
    def unkept(self) -> Path:
        """Checkpoints that the script writes outside the folders that Berth watches."""
        return self.root / "unkept.json"

    def attempt(self, number: int) -> AttemptFolder:
        return AttemptFolder(self.root / "attempts" / str(number))


@dataclass(frozen=True, slots=True)
class Home:
    """The folder that holds all of Berth's state."""

    root: Path

    @property
    def database(self) -> Path:
        return self.root / "db.sqlite3"

    @property
    def redis(self) -> Path:
        return self.root / "redis"

    @property
    def secret_key(self) -> Path:
        return self.root / "secret_key"

    @property
    def secrets_key(self) -> Path:
        """The key that encrypts the secrets of jobs."""
        return self.root / "secrets.key"

    @property
    def logs(self) -> Path:
        """Logs of Berth's own processes."""
        return self.root / "logs"

    @property
    def services(self) -> Path:
        """Records of Berth's own processes, and the agent's state."""
        return self.root / "services"

    @property
    def bundles(self) -> Path:
        return self.root / "bundles"

    @property
    def uploads(self) -> Path:
        """Unfinished uploads; anything older than an hour is a leftover."""
        return self.root / "uploads"

    @property
    def readings(self) -> Path:
        """``now.json``, the newest reading of every device, and their history."""
        return self.root / "readings"

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    @property
    def device_history(self) -> Path:
        return self.readings / "history"

    def job(self, job_id: object) -> JobFolder:
        return JobFolder(self.jobs / str(job_id))
