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
class BuiltEnvironment:
    """A virtual environment for jobs; a rename put it into its place, so it is whole where it is there."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def base(self) -> Path:
        """Links to the server's torch and what that needs; empty in one with a torch of its own."""
        return self.root / "berth" / "base"

    @property
    def library(self) -> Path:
        """Holds a link to the training library, and nothing else."""
        return self.root / "berth" / "library"

    @property
    def entry(self) -> Path:
        """The entry of each rank."""
        return self.library / "training" / "entry.py"


@dataclass(frozen=True, slots=True)
class EnvironmentsFolder:
    """``environments/``: the packages of jobs; all of it can be made again from the locks in the database."""

    root: Path

    @property
    def cache(self) -> Path:
        """uv's cache; the built environments are hard links into it."""
        return self.root / "cache"

    @property
    def work(self) -> Path:
        """A folder for each build that is at work, or was when its process was killed."""
        return self.root / "work"

    @property
    def bytecode(self) -> Path:
        """Compiled modules, to which the environments have links."""
        return self.root / "bytecode"

    def built(self, key: str) -> "BuiltEnvironment":
        return BuiltEnvironment(self.root / "built" / key)

    def log(self, number: int) -> Path:
        """What uv said, by the number of the environment's row."""
        return self.root / "logs" / f"{number}.log"

    def lock(self, number: int) -> Path:
        """Locked while a build is at work."""
        return self.root / "logs" / f"{number}.lock"


@dataclass(frozen=True, slots=True)
class FetchedFolder:
    """``fetched/``: data that jobs name by its address; files of equal content are hard links."""

    root: Path

    @property
    def work(self) -> Path:
        """A folder for each address that is being fetched, or was when its process was killed."""
        return self.root / "work"

    @property
    def trees(self) -> Path:
        return self.root / "trees"

    def tree(self, key: str) -> Path:
        """Fetched files and their list; a rename put it into its place, so it is whole where it is there."""
        return self.trees / key

    def log(self, number: int) -> Path:
        """What the fetching program said, by the number of the fetch's row."""
        return self.root / "logs" / f"{number}.log"

    def lock(self, name: str) -> Path:
        """Locked while a fetch is at work, by the name of its work folder."""
        return self.root / "logs" / f"{name}.lock"


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
    def nodes(self) -> Path:
        """Other servers: the token that they join with, and what each said last."""
        return self.root / "nodes"

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
    def caches(self) -> Path:
        """A folder for each person, by their number, which their jobs may write to."""
        return self.root / "caches"

    def cache_of(self, owner: int) -> Path:
        return self.caches / str(owner)

    @property
    def federations(self) -> Path:
        """A folder for each federation, by its id, through which its jobs talk; removed when all of them have ended."""
        return self.root / "federations"

    @property
    def shared_models(self) -> Path:
        """What administrators keep for the jobs of everybody, as programs would have downloaded it."""
        return self.root / "shared-models"

    @property
    def mirrors(self) -> Path:
        """A folder for each person, by their number: git repositories that the code of their jobs comes from."""
        return self.root / "mirrors"

    @property
    def environments(self) -> "EnvironmentsFolder":
        return EnvironmentsFolder(self.root / "environments")

    @property
    def fetched(self) -> "FetchedFolder":
        return FetchedFolder(self.root / "fetched")

    @property
    def pushed(self) -> Path:
        """Data that people pushed: a folder for each, by their number."""
        return self.root / "pushed"

    @property
    def device_history(self) -> Path:
        return self.readings / "history"

    def job(self, job_id: object) -> JobFolder:
        return JobFolder(self.jobs / str(job_id))
