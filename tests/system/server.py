"""A real Berth in a state folder of its own, watched through REST and /proc as anybody outside could."""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.waiting import PATIENCE_S, patience_s, pause_s, wait_until
from tests.web_log import WebLog

REPOSITORY = Path(__file__).resolve().parents[2]
FINAL = {"succeeded", "failed", "cancelled", "timed_out"}
STATIC, DATABASE = "static", "db.sqlite3"  # in a state folder
EVERY_S = 0.05  # how often to ask at most
PORTS = range(20_000, 32_000, 2)
ENDS_WITHIN_S = 60  # a cancelled job: its grace is 30 s unless a test says otherwise
_marks: list[socket.socket] = []  # of the ports that this process has chosen
# What tells our services apart by their command lines.
COMMANDS = {
    "web": "orchestrator.server.web:application",
    "worker": "orchestrator.live.broker\0worker",
    "agent": "orchestrator.management\0agent",
}
# Only where other servers may join.
NODE_COMMANDS = {"links": "orchestrator.management\0links", "ray": "ray"}
_FIRST_START = """
import sys
from django.contrib.auth import get_user_model
from django.conf import settings
from orchestrator.people import tokens
from orchestrator.server import static
from orchestrator.models import DatasetRoot
static.collect_static()
root = get_user_model().objects.create_superuser("root", password="root's password")
DatasetRoot.objects.create(name="examples", path=str(settings.BASE_DIR / "examples/data"))
sys.stdout.write(tokens.issue(root, name="tests", scope="admin")[1])
"""


def prepare_home(home: Path, migrated: Path | None = None) -> str:
    """Bring a state folder to where a first start leaves it; returns an admin's token.

    Args:
        migrated: a database to begin with, see ``migrate_once``.
    """
    if migrated is None:
        _manage(home, "migrate", "--verbosity", "0")
    else:
        home.mkdir()
        shutil.copyfile(migrated, home / DATABASE)
    return _manage(home, "shell", "-v", "0", "-c", _FIRST_START)


def _manage(home: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "BERTH_HOME": str(home), "DATABASE_URL": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,  # of a core it takes 10 s, and cores may be busy
    )
    return done.stdout.strip()


class Prepared(NamedTuple):
    """A state folder as a first start leaves it, to copy, and an admin's token for it."""

    home: Path
    token: str

    def copy_to(self, home: Path) -> None:
        """Copy it without the static files: 30 MB that no server writes, and that all copies share."""
        shutil.copytree(self.home, home, ignore=shutil.ignore_patterns(STATIC))
        (home / STATIC).symlink_to(self.home / STATIC)


def prepare_once(folder: Path) -> Prepared:
    """The state folder that all workers of a session copy: made in ``folder`` by the first that asks.

    It costs 10 s of a core, most of it to hash and compress the static files.
    """
    migrated = migrate_once(folder)
    prepared = Prepared(folder / "berth", "")
    kept = folder / "token"
    with _only_one(folder / "lock"):
        if not kept.exists():
            shutil.rmtree(prepared.home, ignore_errors=True)  # of a worker that died while it made it
            kept.write_text(prepare_home(prepared.home, migrated))
    return prepared._replace(token=kept.read_text())


def migrate_once(folder: Path) -> Path:
    """An SQLite database without rows that all workers of a session copy: each would take 6 s of a core for it."""
    folder.mkdir(exist_ok=True)
    made, draft = folder / DATABASE, folder / "migrated"
    with _only_one(folder / "migrating"):
        if not made.exists():
            shutil.rmtree(draft, ignore_errors=True)
            _manage(draft, "migrate", "--verbosity", "0")
            (draft / DATABASE).rename(made)
    return made


@contextlib.contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def free_port() -> int:
    """A port that is free together with the next one, which a server gives to sessions; nobody gets it twice.

    Below those that the kernel gives to connections, one of which could take it before the server does, and above
    those of Ray's workers.
    """
    while True:
        port = secrets.choice(PORTS)
        mark = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), socket.socket() as first, socket.socket() as second:
            mark.bind(f"\0berth-tests-{port}")  # for as long as this process lives: other workers choose, too
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            _marks.append(mark)
            return port
        mark.close()


class Server:
    """``manage.py up`` and the ways to talk to it, to look at it and to hurt it."""

    def __init__(self, home: Path, token: str, devices: str, extra: Mapping[str, str] | None = None) -> None:
        self.home, self.token, self.port = home, token, free_port()
        self.environment = {
            **os.environ,
            **(extra or {}),
            "BERTH_HOME": str(home),
            "BERTH_PORT": str(self.port),
            "BERTH_DEVICES": devices,
        }
        self.up: subprocess.Popen[bytes] | None = None
        self.resting = False
        self.web_log = WebLog(home / "logs" / "web.log")

    # Life

    def start(self) -> Self:
        """Start everything; returns once the agent has read the devices and REST answers."""
        if self.up is not None:
            self.up.wait(PATIENCE_S)
        self.up = self.command("up")
        self.wait_until(lambda: self.up_ended() or self._is_ready())
        assert not self.up_ended(), self.logs()
        return self

    def command(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start ``manage.py`` for this home; what it prints goes to ``up.log``."""
        with (self.home / "up.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "manage.py", *arguments],
                cwd=REPOSITORY,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Ctrl-C; trainings go on."""
        assert self.up is not None
        self.up.send_signal(signal.SIGINT)
        assert self.up.wait(PATIENCE_S) == 0, self.logs()

    def make_whole(self) -> None:
        """Start the server again where a test left it ended, and let services go on that it left stopped."""
        if self.up_ended():
            self.kill_everything()
            self.start()
        elif self.resting:
            self.resting = False
            kill(self.all_processes(), signal.SIGCONT)
            self.wait_until(self._is_ready)
        kill((pid for name in (*COMMANDS, "redis") for pid in self.service(name)), signal.SIGCONT)

    def rest(self) -> None:
        """Stand still until ``make_whole`` or a call: idle services take a twentieth of a core."""
        if not self.up_ended():
            self.resting = True
            kill(self.all_processes(), signal.SIGSTOP)

    def leave_idle(self) -> None:
        """End every job that a test left; one that does not end when it is cancelled loses its processes."""
        jobs = self._unfinished()
        for job_id in jobs:
            self.call("POST", f"/jobs/{job_id}/cancel")
        with contextlib.suppress(AssertionError):
            self.wait_until(lambda: not self._unfinished(), ENDS_WITHIN_S)
        for job_id in self._unfinished():
            kill([*self.supervisors(job_id), *self.members(job_id)])
        self.wait_until(lambda: not self._unfinished(), ENDS_WITHIN_S)

    def _unfinished(self) -> list[str]:
        found = self.get("/jobs?limit=100")["results"]
        return [job["id"] for job in found if job["state"] not in FINAL]

    def up_ended(self) -> bool:
        return self.up is None or self.up.poll() is not None

    def clean_up(self) -> None:
        """Leave no process behind, whatever a test did."""
        self.kill_everything()
        if self.up is not None:
            self.up.wait(PATIENCE_S)
        self.web_log.close()

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Start everything for a block, and leave no process behind."""
        try:
            yield self.start()
        finally:
            self.clean_up()

    def _is_ready(self) -> bool:
        try:
            ready = self.call("GET", "/health/ready")[0] == 200
            return ready and bool(self.get("/devices")["results"])
        except OSError:
            return False

    @classmethod
    def copy_of(
        cls, prepared: Prepared, home: Path, devices: str, extra: Mapping[str, str] | None = None
    ) -> Self:
        """A server on a state folder of its own, as a first start leaves it; not started yet."""
        prepared.copy_to(home)
        # Sign-in by an issuer brings files of its own: such a server would clear the folder that others serve from.
        if "BERTH_OIDC_ISSUER" in (extra or {}):
            (home / STATIC).unlink()
        return cls(home, prepared.token, devices, extra)

    # REST

    def call(
        self, method: str, path: str, body: object = None, *, key: str = "", timeout_s: float = 120
    ) -> tuple[int, Any]:
        """Status and parsed answer; OSError where the server does not answer.

        Args:
            key: the Idempotency-Key.
        """
        if self.resting:
            self.make_whole()
        request = urllib.request.Request(  # http, to ourselves
            f"http://127.0.0.1:{self.port}/api/v1{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Token {self.token}",
                "Content-Type": "application/json",
                **({"Idempotency-Key": key} if key else {}),
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310  # as above
                return answer.status, _parse(answer.read(), answer.headers["Content-Type"])
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _parse(error.read(), error.headers["Content-Type"])

    def get(self, path: str) -> Any:
        status, answer = self.call("GET", path)
        assert status == 200, (path, status, answer)
        return answer

    def post(self, path: str, body: object = None, *, key: str = "") -> Any:
        status, answer = self.call("POST", path, body, key=key)
        assert status in {200, 201}, (path, status, answer)
        return answer

    def submit(self, script: str | Path, **fields: Any) -> str:
        """Submit a script, given as text or as a file of the repository; returns the job's id."""
        return str(self.post("/jobs", job_body(script, **fields))["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.get(f"/jobs/{job_id}"))

    def attempts(self, job_id: str) -> list[dict[str, Any]]:
        """Oldest first."""
        return sorted(self.get(f"/jobs/{job_id}/attempts")["results"], key=lambda each: each["number"])

    def reasons(self, job_id: str) -> list[str]:
        return [each["reason"] for each in self.get(f"/jobs/{job_id}/events")["results"]]

    def states(self, job_id: str) -> list[str]:
        """The states that a job went through, oldest first, without repetitions."""
        events = self.get(f"/jobs/{job_id}/events")["results"]
        return [each["to"] for each in events if each["from"] != each["to"]]

    def log(self, job_id: str, attempt: int = 1, rank: int = 0) -> str:
        status, text = self.call("GET", f"/jobs/{job_id}/logs?attempt={attempt}&rank={rank}")
        return text if status == 200 else ""

    # Waiting

    def wait_until(self, condition: Callable[[], object], limit_s: float = PATIENCE_S) -> None:
        wait_until(condition, limit_s, self.logs, every_s=EVERY_S)

    def wait_for_state(self, job_id: str, *states: str, limit_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait until the job is in one of ``states``; fails at once when it ends in another."""
        deadline = time.monotonic() + patience_s(limit_s)
        while True:
            asked_s = time.monotonic()
            try:
                job = self.job(job_id)
            except OSError:  # the web process was just killed
                job = {"state": "?"}
            if job["state"] in states:
                return job
            ended = job["state"] in FINAL or time.monotonic() > deadline
            assert not ended, (
                f"{job['state']} instead of {states}\n{json.dumps(job, indent=1)}\n{self.logs()}"
            )
            time.sleep(pause_s(time.monotonic() - asked_s, EVERY_S))

    def wait_for_end(self, job_id: str, limit_s: float = PATIENCE_S) -> dict[str, Any]:
        return self.wait_for_state(job_id, *FINAL, limit_s=limit_s)

    def wait_for_line(
        self, job_id: str, text: str, *, attempt: int = 1, rank: int = 0, limit_s: float = PATIENCE_S
    ) -> str:
        """Wait for a text in a rank's log; returns the log."""
        path = self.folder(job_id, attempt) / "logs" / f"rank{rank}.log"
        self.wait_until(lambda: path.exists() and text in path.read_text(), limit_s)
        return path.read_text()

    # Files and processes

    def folder(self, job_id: str, attempt: int | None = None) -> Path:
        folder = self.home / "jobs" / job_id
        return folder if attempt is None else folder / "attempts" / str(attempt)

    def ranks(self, job_id: str) -> list[int]:
        """The pids of a job's ranks, in order of rank; data-loader workers and torchrun are none."""
        found = {}
        for pid, command, environ in processes():
            if f"BERTH_JOB_ID={job_id}" in environ and "entry.py" in command:
                rank = next((each[5:] for each in environ if each.startswith("RANK=")), None)
                if rank is not None and "torch.distributed" not in command and "bwrap" not in command:
                    found[int(rank)] = pid
        return [found[rank] for rank in sorted(found)]

    def members(self, job_id: str) -> list[int]:
        """Every process of a job, bubblewrap and torchrun too; not its supervisor."""
        return [pid for pid, _, environ in processes() if f"BERTH_JOB_ID={job_id}" in environ]

    def torchrun(self, job_id: str) -> int:
        return next(
            pid
            for pid, command, environ in processes()
            if f"BERTH_JOB_ID={job_id}" in environ
            and "torch.distributed.run" in command
            and "bwrap" not in command
        )

    def supervisors(self, job_id: str = "") -> list[int]:
        folder = str(self.home / "jobs" / job_id)
        return [
            pid
            for pid, command, _ in processes()
            if "supervisor/__main__.py" in command and folder in command
        ]

    def nurseries(self) -> list[int]:
        """The processes from which the worker's next supervisors come."""
        workers = self.service("worker")
        return [
            pid
            for pid, command, _ in processes()
            if "supervisor/__main__.py --nursery" in command and parent(pid) in workers
        ]

    def service(self, name: str) -> list[int]:
        """The pids of one of our services, children included, parents first."""
        if name == "redis":  # it writes a title over its command line and environment
            return [pid for pid, _, _ in processes() if _folder_of(pid) == self.home / "redis"]
        found = [
            pid
            for pid, command, environ in processes()
            if {**COMMANDS, **NODE_COMMANDS}[name] in command and f"BERTH_HOME={self.home}" in environ
        ]
        return sorted(
            found, key=lambda pid: (started_ticks(pid), pid)
        )  # pids begin again at the kernel's largest

    def kill_service(self, name: str, number: int = signal.SIGKILL, *, tree: bool = False) -> list[int]:
        """Signal a service, and wait until another one answers in its place."""
        before = self.service(name)
        kill(before if tree else before[:1], number)
        self.wait_until(lambda: set(self.service(name)) - set(before))
        return before

    def kill_everything(self) -> None:
        """A power cut, but for the kernel: SIGKILL of all that is ours, supervisors and Redis included."""
        while pids := self.all_processes():
            kill(pids)
            time.sleep(0.02)

    def all_processes(self) -> list[int]:
        """Everything that runs for this home: services, supervisors, ranks."""
        ours = [
            pid
            for pid, command, environ in processes()
            if f"BERTH_HOME={self.home}" in environ or f"{self.home}/jobs/" in command
        ]
        return ours + self.service("redis")

    def logs(self) -> str:
        """The ends of all our logs, for the message of a test that failed."""
        paths = [self.home / "up.log", *sorted((self.home / "logs").glob("*.log"))]
        return "\n".join(f"--- {path.name}\n{path.read_text()[-2000:]}" for path in paths if path.exists())


def job_body(script: str | Path, **fields: Any) -> dict[str, Any]:
    if isinstance(script, Path):
        fields.setdefault("entrypoint", script.name)
        script = script.read_text()
    return {"source": {"text": script}, **fields}


def processes() -> list[tuple[int, str, list[str]]]:
    """Pid, command line (NUL between the words) and environment of every process but ourselves."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # it went while we looked
            command = Path(entry.path, "cmdline").read_bytes().decode(errors="replace")
            environ = Path(entry.path, "environ").read_bytes().decode(errors="replace").split("\0")
            if command:  # zombies have none
                found.append((int(entry.name), command, environ))
    return found


def parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def started_ticks(pid: int) -> int:
    """When a process started, by the kernel's clock; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def alive(pids: Iterable[int]) -> list[int]:
    """Those that run; zombies do not."""
    known = {pid for pid, _, _ in processes()}
    return [pid for pid in pids if pid in known]


def _folder_of(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return None


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _parse(data: bytes, content_type: str | None) -> Any:
    if content_type and "json" in content_type:
        return json.loads(data) if data else None
    return data.decode(errors="replace")
