"""People, pools, devices and jobs for every test, and a state folder of its own for each."""

import dataclasses
import gc
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.utils import timezone
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from berth.shared.arguments import values_by_name
from orchestrator.jobs import lifecycle
from orchestrator.jobs.memory_claims import memory_key
from orchestrator.models import (
    Attempt,
    Device,
    Job,
    JobEvent,
    JobState,
    LoneRun,
    Outbox,
    Pool,
    Service,
    Slowdown,
)
from orchestrator.spec.job_spec import GIB, JobSpec
from orchestrator.store.bundles import bundles
from orchestrator.store.layout import Home
from tests import marks
from tests.system.server import Prepared, migrate_once, prepare_once
from tests.tools import cost, hangs, no_gpu, turns
from tests.web_log import take_errors

# CI tries the same examples each time; elsewhere every run tries others.
# How long an example takes says how busy the machine is; speeds are in benchmarks/.
_ANY_MACHINE: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
hypothesis_settings.register_profile("ci", derandomize=True, **_ANY_MACHINE)
hypothesis_settings.register_profile("here", **_ANY_MACHINE)
hypothesis_settings.load_profile("ci" if os.environ.get("BERTH_CI") else "here")

# One thread for each process that computes: threads that find no core wait for each other in a loop.
os.environ.setdefault("OMP_NUM_THREADS", "1")

NOBODY = 65534  # the user of that name
SCRIPT = b"print('step 1 loss 0.5')\n"


def lacking(reason: str) -> NoReturn:
    """Skip a test for what this machine lacks; in continuous integration, which installs it all, fail."""
    if os.environ.get("BERTH_CI") == "1":
        pytest.fail(f"continuous integration must have what this test needs: {reason}", pytrace=False)
    pytest.skip(reason)


def pytest_configure(config: pytest.Config) -> None:
    marks = config.getoption("markexpr")
    no_gpu.require_one_worker(marks, config.getoption("numprocesses", None) or 0)
    if not no_gpu.wants_gpu(marks):
        no_gpu.hide()
    hangs.watch(config, config.rootpath / "build" / "tests")
    cost.watch(config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector, which then never looks at what was loaded and stays to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # after pytest-django has put tests with transactions last
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    turns.sort(items)


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_itemcollected(item: pytest.Item) -> None:
    marks.mark(item)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Several workers get whole files, the dearest first."""
    return turns.ByFile(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def _children_use_the_real_settings() -> None:
    # A program that a test starts gets BERTH_HOME from that test; tests/settings.py would replace it.
    os.environ["DJANGO_SETTINGS_MODULE"] = "orchestrator.server.settings"


@pytest.fixture(scope="module", autouse=True)
def _no_request_failed_at_the_end() -> Iterator[None]:
    """A server's last requests, and those between the tests of a file, failed nowhere inside."""
    yield
    _check_web_logs()


@pytest.fixture(autouse=True)
def _no_request_failed() -> Iterator[None]:
    """No request of a test to a real server failed inside, whatever its answer was used for."""
    yield
    _check_web_logs()


def _check_web_logs() -> None:
    if errors := take_errors():
        pytest.fail(f"a server failed inside:\n{errors}", pytrace=False)


@pytest.fixture(scope="session")
def folder_of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where workers find what one of them has made for all."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "prepared"


@pytest.fixture(scope="session")
def prepared(folder_of_all_workers: Path) -> Prepared:
    """A state folder as a first start leaves it, to copy; all workers have the same."""
    return prepare_once(folder_of_all_workers)


@pytest.fixture(scope="session")
def django_db_keepdb(
    django_db_keepdb: bool, django_db_modify_db_settings: None, folder_of_all_workers: Path
) -> bool:
    """Begin with a copy of the database that one worker has migrated, where there are several and it is a file."""
    database: dict[str, Any] = django_settings.DATABASES["default"]
    if "PYTEST_XDIST_WORKER" not in os.environ or "sqlite3" not in str(database["ENGINE"]):
        return django_db_keepdb
    copy = Path(database["TEST"]["NAME"])
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(migrate_once(folder_of_all_workers), copy)
    return True


@pytest.fixture
def home(tmp_path: Path, settings) -> Home:
    """An empty state folder, in the settings for the length of one test."""
    home = Home(tmp_path / "berth")
    home.uploads.mkdir(parents=True)
    settings.HOME = home
    settings.ENVIRONMENT = dataclasses.replace(
        settings.ENVIRONMENT, home=home, redis_url=f"unix://{home.redis}/redis.sock"
    )
    settings.FILE_UPLOAD_TEMP_DIR = str(home.uploads)
    settings.STATIC_ROOT = tmp_path / "static"
    settings.STATIC_ROOT.mkdir()
    return home


@pytest.fixture
def as_ordinary_user(tmp_path: Path) -> Callable[[], AbstractContextManager[None]]:
    """For the length of a ``with``: what root may do is refused, and the files of this test are one's own."""

    @contextmanager
    def ordinary() -> Iterator[None]:
        if os.geteuid() != 0:
            yield
            return
        for path in [tmp_path, *tmp_path.rglob("*")]:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        for folder in [each for each in tmp_path.parents if each.stat().st_mode & 0o111 == 0o100]:
            folder.chmod(0o711)  # pytest's own folders
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)

    return ordinary


@pytest.fixture
def ada(db) -> User:
    """Owns the jobs."""
    return User.objects.create_user("ada", password="ada's password")  # noqa: S106  # a test's


@pytest.fixture
def bob(db) -> User:
    """Another member, who may not see what ada owns."""
    return User.objects.create_user("bob", password="bob's password")  # noqa: S106  # a test's


@pytest.fixture
def root(db) -> User:
    """Staff."""
    return User.objects.create_superuser("root", password="root's password")  # noqa: S106  # a test's


@pytest.fixture
def make_pool(db) -> Callable[..., Pool]:
    def make(name: str = "default", **fields: Any) -> Pool:
        return Pool.objects.get_or_create(name=name, defaults=fields)[0]

    return make


@pytest.fixture
def make_device(make_pool) -> Callable[..., Device]:
    """A simulated GPU of 80 GiB in the default pool, unless said otherwise."""

    def make(index: int = 0, *, memory_gib: float = 80, **fields: Any) -> Device:
        pool = fields.pop("pool", None) or make_pool()
        defaults = {
            "id": f"sim-{index}",
            "index": index,
            "kind": "sim",
            "name": "Simulated GPU",
            "memory_bytes": round(memory_gib * GIB),
        }
        return Device.objects.create(pool=pool, **{**defaults, **fields})

    return make


@pytest.fixture
def make_job(make_pool, ada) -> Callable[..., Job]:
    """A queued job of ada's, as a submit leaves it; keywords replace columns, ``spec`` fields of the spec."""

    def make(owner: User | None = None, **fields: Any) -> Job:
        now = timezone.now()
        spec = JobSpec.model_validate(fields.pop("spec", {}))
        job = Job.objects.create(
            **{
                "owner": owner or ada,
                "pool": fields.pop("pool", None) or make_pool(),
                "name": spec.name or "digits",
                "spec_fields": spec.model_dump(mode="json", exclude={"source"}),
                "arguments": values_by_name(spec.args),
                "bundle": "0" * 64,
                "priority": spec.priority,
                "gpus": spec.gpus,
                "time_limit_s": spec.time_limit_s,
                "total_steps": spec.total_steps,
                "submitted_at": now,
                "queued_at": now,
                "event_count": 1,
                **fields,
            }
        )
        JobEvent.objects.create(job=job, number=1, at=now, to_state=job.state, actor="ada")
        return job

    return make


@pytest.fixture
def make_attempt(make_job, make_device) -> Callable[..., Attempt]:
    """A job that got devices: its first attempt, in ``state`` of the job (starting, running or stopping)."""

    def make(
        job: Job | None = None,
        *,
        state: JobState = JobState.STARTING,
        devices: Sequence[Device] = (),
        memory_bytes: int | None = None,
        **fields: Any,
    ) -> Attempt:
        job = job or make_job(**fields)
        now = timezone.now()
        devices = devices or [make_device(Device.objects.count())]
        shares = [(device, memory_bytes) for device in devices]
        attempt = lifecycle.start(job, shares, nonce=secrets.token_hex(16), now=now)
        if state != JobState.STARTING:
            lifecycle.claim_launch(attempt, now)
            lifecycle.run(attempt, started_at=now)
            attempt.refresh_from_db()
        if state == JobState.STOPPING:
            lifecycle.preempt(job, by="root")
        job.refresh_from_db()
        attempt.job = job
        return attempt

    return make


@pytest.fixture
def neighbours(make_attempt, make_device):
    """Two jobs on one device, of which the first was seen to be 18 % slower beside the second."""
    device = make_device(0)
    jobs = [
        make_attempt(
            state=JobState.RUNNING,
            devices=[device],
            memory_bytes=GIB,
            name=name,
            spec={"args": [name], "gpu_memory_gib": 1},
        ).job
        for name in ("vit-s", "ner")
    ]
    vit, ner = (memory_key(job.spec_fields, job.bundle) for job in jobs)
    facts = {"device_name": device.name, "runs": 99, "seen_at": timezone.now()}
    for work in (vit, ner):
        LoneRun.objects.create(work=work, use=0.5, steps_per_s=1.0, **facts)
    Slowdown.objects.create(work=vit, other=ner, slowdown=1.18, **facts)
    return jobs


@pytest.fixture
def make_service(ada, make_pool) -> Callable[..., Service]:
    """A service of ada's without replicas; keywords replace columns."""

    def make(name: str = "digits", **fields: Any) -> Service:
        now = timezone.now()
        given = {"idle_s": 600, "deadline_s": 2, "most_waiting": 100, "health_path": "", "max_replicas": 2}
        return Service.objects.create(
            **{
                "name": name,
                "owner": ada,
                "pool": make_pool(),
                "job_fields": {"kind": "service", "command": ["python", "serve.py"]},
                "bundle": "0" * 64,
                "created_at": now,
                "changed_at": now,
                **given,
                **fields,
            }
        )

    return make


@pytest.fixture
def store_script(home) -> Callable[..., str]:
    """Keep a script in the bundle store; returns its hash."""

    def store(text: bytes = SCRIPT, name: str = "train.py") -> str:
        return bundles.store_script(home.bundles, name, text).sha256

    return store


@pytest.fixture
def open_errands(db) -> Callable[[], list[tuple[str, int]]]:
    """What the outbox still holds: (errand, attempt number)."""
    return lambda: list(Outbox.objects.open().order_by("id").values_list("errand", "number"))
