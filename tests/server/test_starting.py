"""Settings, wake-ups, and what stops a start with a sentence."""

import dataclasses
import fcntl
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from orchestrator.exceptions import WrongSetting
from orchestrator.jobs.submission import intake
from orchestrator.live import wakeups
from orchestrator.models import Job
from orchestrator.server.environment import Environment, read_environment, redis_socket
from orchestrator.server.operation import first_start, services
from orchestrator.store.layout import Home
from tests.waiting import PATIENCE_S

REPOSITORY = Path(__file__).resolve().parents[2]


def read(**variables: str) -> Environment:
    return read_environment({"BERTH_HOME": "/tmp/berth", **variables})  # noqa: S108  # nothing is written there


@pytest.mark.django_db(transaction=True)
def test_the_first_start_asks_for_no_redis_which_is_not_there_yet(caplog):
    told: list[str] = []

    first_start.prepare(told.append)
    wakeups.wait_until_sent()

    assert any("First admin" in line for line in told)
    assert caplog.text == ""


def test_nothing_must_be_set():
    environment = read()

    assert (environment.port, environment.bind, environment.devices) == (8265, "127.0.0.1", "auto")
    assert environment.own_redis
    assert environment.redis_url == "unix:///tmp/berth/redis/redis.sock"
    assert environment.database["ENGINE"] == "django.db.backends.sqlite3"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BERTH_HOME", "relative/path"),
        ("BERTH_HOME", "/etc/hostname"),
        ("BERTH_HOME", "~nobody-of-this-name/x"),
        ("BERTH_PORT", "0"),
        ("BERTH_PORT", "65536"),
        ("BERTH_PORT", "http"),
        ("BERTH_PORT", "٨٠"),
        ("BERTH_DEVICES", "gpu"),
        ("BERTH_CPU_SLOTS", "-1"),
        ("BERTH_CPU_SLOTS", "many"),
        ("BERTH_NODES", "10.0.0.5"),
        ("BERTH_NODES", "10.0.0.5:13539"),  # of Ray's workers
        ("BERTH_NODE_LEASE_S", "9"),
        ("BERTH_NODE_LEASE_S", "-1"),
        ("BERTH_NODE_LEASE_S", "2m"),
        ("BERTH_DEVICES", "cpu:0"),
        ("BERTH_DEVICES", "sim:0x80GiB"),
        ("BERTH_DEVICES", "sim:8x0GiB"),
        ("BERTH_DEVICES", "sim:8x80"),
        ("BERTH_REDIS_URL", "localhost:6379"),
        ("BERTH_DEBUG", "yes"),
        ("BERTH_TLS", "on"),
        ("BERTH_LOG", "xml"),
        ("BERTH_PROXIES", "127.0.0.1,caddy"),
        ("BERTH_KEEP_DAYS", "-1"),
        ("BERTH_USER_DISK_GIB", "1.5"),
        ("BERTH_SOCKETS_A_PERSON", "0"),
        ("DATABASE_URL", "mysql://x/y"),
        ("DATABASE_URL", "postgresql://host"),
        ("DATABASE_URL", "postgresql://host:99999/name"),
        ("DATABASE_URL", "postgresql://[::1/name"),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_do(name, value):
    with pytest.raises(WrongSetting) as error:
        read(**{name: value})
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_a_password_of_the_database_is_not_told():
    with pytest.raises(WrongSetting) as error:
        read(DATABASE_URL="postgresql://me:hunter2@host:99999/name")
    assert "hunter2" not in str(error.value)


def test_a_database_address_is_read_whole():
    database = read(DATABASE_URL="postgres://me:p%40ss@db:5433/berth").database

    assert {name: database[name] for name in ("USER", "PASSWORD", "HOST", "PORT", "NAME")} == {
        "USER": "me",
        "PASSWORD": "p@ss",
        "HOST": "db",
        "PORT": "5433",
        "NAME": "berth",
    }


def test_a_long_home_gets_a_short_socket(tmp_path):
    path = redis_socket(Home(tmp_path / ("x" * 100)))

    assert len(bytes(path)) <= 100
    assert path != redis_socket(Home(tmp_path / ("y" * 100)))


@pytest.mark.parametrize(("name", "value"), [("BERTH_PORT", "x"), ("BERTH_HOME", "/proc/berth")])
def test_a_wrong_setting_stops_the_start_with_one_sentence(name, value):
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "orchestrator.server.settings", name: value}
    done = subprocess.run(
        [sys.executable, "-c", "import orchestrator.server.settings"],
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr.startswith("Berth cannot start: ")
    assert done.stderr.count("\n") == 1


def test_a_new_home_is_for_its_user_alone(tmp_path):
    home = tmp_path / "new" / "home"
    script = "import os; os.umask(0o022); import orchestrator.server.settings"

    subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "BERTH_HOME": str(home)},
        cwd=REPOSITORY,
        timeout=PATIENCE_S,
        check=True,
    )

    assert home.stat().st_mode & 0o777 == 0o700


# --- starting


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_f69_a_port_that_is_taken_is_told_before_anything_starts(taken, tmp_path):
    environment = read(BERTH_PORT=str(taken))

    with pytest.raises(
        services.CannotStart, match=f"Port {taken} on 127.0.0.1 cannot be used .* set BERTH_PORT"
    ):
        services.Services(environment, tmp_path, print).start()


@pytest.mark.parametrize(
    ("bind", "address"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.0.0.5", "10.0.0.5")],  # noqa: S104  # nothing is bound
)
def test_the_web_server_is_asked_where_it_listens(bind, address):
    assert services.reachable(bind) == address


@pytest.mark.django_db
def test_the_web_process_opens_as_many_files_as_the_system_grants(tmp_path):
    code = (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (256, 4096)); "
        "import orchestrator.server.web; print(*r.getrlimit(r.RLIMIT_NOFILE))"
    )
    variables = {
        "BERTH_HOME": str(tmp_path / "berth"),
        "DJANGO_SETTINGS_MODULE": "orchestrator.server.settings",
    }

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )

    assert done.stdout.split() == ["4096", "4096"]


def test_f31_a_second_up_refuses(home):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with (home.root / "up.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with pytest.raises(CommandError, match=r"Berth is already running for .* `make down`"):
                call_command("up")
        finally:
            signal.signal(signal.SIGINT, before[0])
            signal.signal(signal.SIGTERM, before[1])


def test_a_process_that_ends_is_started_again_after_a_growing_pause(tmp_path):
    said: list[str] = []
    environment = read(BERTH_HOME=str(tmp_path))
    all_of_it = services.Services(environment, tmp_path, said.append)
    service = services.Service("web", [sys.executable, "-c", "raise SystemExit(3)"])
    all_of_it._start_one(service)
    assert service.process is not None
    service.process.wait()

    all_of_it.watch()

    assert said == [f"web ended (exit status 3); restarting it. Log: {tmp_path}/logs/web.log"]
    assert service.pause_s == 0.4
    all_of_it.watch()
    assert service.process is None, "not before its pause is over"
    service.restart_at = 0.0
    all_of_it.watch()
    assert service.process is not None
    service.process.wait()


def test_full_disk_keeps_no_service_from_its_restart(tmp_path):
    environment = read(BERTH_HOME=str(tmp_path))
    all_of_it = services.Services(environment, tmp_path, print)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/web.log").symlink_to("/dev/full")  # takes no byte
    service = services.Service("web", [sys.executable, "-c", "raise SystemExit(3)"])
    (environment.home.services / "web.json").mkdir(parents=True)  # so that the record cannot be written

    all_of_it._start_one(service)

    assert service.process is not None
    assert service.process.wait() == 3


def test_service_that_cannot_be_started_is_tried_again_and_the_others_stay_watched(tmp_path):
    said: list[str] = []
    all_of_it = services.Services(read(BERTH_HOME=str(tmp_path)), tmp_path, said.append)
    ended = services.Service("web", [str(tmp_path / "missing")])
    other = services.Service("worker", [sys.executable, "-c", "raise SystemExit(3)"])
    all_of_it.all += [ended, other]
    began = time.monotonic()

    all_of_it.watch()

    assert said == [
        f"web cannot be started: [Errno 2] No such file or directory: '{tmp_path}/missing'; trying again in 0.4 s."
    ]
    assert ended.restart_at >= began + 0.4
    assert other.process is not None
    assert other.process.wait() == 3


def test_what_does_not_end_in_time_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(services, "STOP_WITHIN_S", 0.3)
    stubborn = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    all_of_it = services.Services(read(BERTH_HOME=str(tmp_path)), tmp_path, print)
    all_of_it._start_one(services.Service("web", [sys.executable, "-c", stubborn]))
    while "up" not in (tmp_path / "logs/web.log").read_text():
        time.sleep(0.01)

    all_of_it.stop()

    process = all_of_it.all[0].process
    assert process is not None
    assert process.returncode == -signal.SIGKILL


# --- wake-ups


@pytest.mark.django_db(transaction=True)
def test_a_wake_up_is_sent_after_the_commit_and_never_after_a_rollback(sent):
    with transaction.atomic():
        wakeups.publish("jobs", 7)
        assert sent.sender.waiting == {}
    assert list(sent.sender.waiting) == ["live jobs"]
    with transaction.atomic():
        wakeups.publish("queue")
        transaction.set_rollback(True)
    assert list(sent.sender.waiting) == ["live jobs"]


@pytest.mark.django_db(transaction=True)
def test_a_submit_asks_for_a_pass_before_it_tells_the_views(sent, ada, make_device):
    make_device(0)
    sent.sender.waiting.clear()

    intake.accept(ada, intake.parse_spec({"source": {"text": "print()\n"}}))

    assert list(sent.sender.waiting)[:2] == [
        "task orchestrator.agent.tasks.schedule () {'for_errands': True}",
        f"live job:{Job.objects.get().pk}",
    ]


@pytest.mark.django_db
def test_down_in_a_home_where_nothing_was_started_says_so(home, monkeypatch):
    monkeypatch.setattr(connection.introspection, "table_names", list)
    said = StringIO()

    call_command("down", stdout=said)

    assert said.getvalue() == f"Berth was never started in {home.root}; there is nothing to stop.\n"


@pytest.mark.django_db(transaction=True)
def test_down_wakes_nobody_up_because_all_that_listens_is_down(home, sent, make_attempt, make_device):
    make_attempt(devices=[make_device(0)])
    sent.sender.waiting.clear()

    call_command("down", stdout=StringIO())

    assert Job.objects.get().stop_wanted
    assert sent.sender.waiting == {}
    wakeups.schedule()
    assert len(sent.sender.waiting) == 1


@pytest.mark.django_db(transaction=True)
def test_f34_what_waits_for_a_hanging_redis_stays_small(sent):
    for seq in range(1000):
        wakeups.publish("jobs", seq)
        wakeups.schedule()

    assert len(sent.sender.waiting) == 2


class Sent:
    """The sender of this process, whose thread is held as by a Redis that hangs."""

    def __init__(self) -> None:
        self.sender = wakeups._Sender.get()
        self.go_on = threading.Event()

    def hold(self) -> None:
        assert self.sender.wait_until_idle(10)
        self.sender.put("hold", self.go_on.wait)
        while self.sender.waiting:
            time.sleep(0.001)


@pytest.fixture
def sent():
    sent = Sent()
    sent.hold()
    yield sent
    sent.go_on.set()
    assert sent.sender.wait_until_idle(10)


def test_an_outage_is_said_once(caplog):
    sender = wakeups._Sender.get()
    assert sender.wait_until_idle(10)
    sender.failing = False
    errors = [ConnectionError("a"), OSError("b"), ConnectionError("c")]

    def fail() -> None:
        raise errors.pop()

    for number in range(3):
        sender.put(str(number), fail)
    assert sender.wait_until_idle(10)

    assert caplog.text.count("Redis does not accept wake-ups") == 1


def test_f33_a_redis_that_cannot_read_what_it_kept_starts_empty(home):
    environment = dataclasses.replace(settings.ENVIRONMENT, home=home)
    kept = home.redis / "appendonlydir"
    kept.mkdir(parents=True)
    (kept / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
    said: list[str] = []
    started = services.Services(environment, settings.BASE_DIR, said.append)
    try:
        started._start_redis()
        started._wait("Redis", started._redis_answers, 10)
    finally:
        started.stop()

    assert "starts empty" in said[0]
    assert (home.redis / "appendonlydir.damaged").is_dir()


@pytest.mark.slow
def test_f47_an_interrupted_migration_is_told_and_completed_by_the_same_command(tmp_path):
    database = tmp_path / "db.sqlite3"

    def manage(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "manage.py", *words],
            cwd=REPOSITORY,
            env={**os.environ, "BERTH_HOME": str(tmp_path), "DATABASE_URL": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def applied() -> int:
        try:
            with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=5)) as rows:
                return int(rows.execute("SELECT count(*) FROM django_migrations").fetchone()[0])
        except sqlite3.OperationalError:  # not there yet
            return 0

    with manage("migrate", "--verbosity", "0") as killed:
        while applied() < 3 and killed.poll() is None:
            time.sleep(0.01)
        killed.kill()
    with closing(sqlite3.connect(database)) as rows:
        rows.execute("CREATE TABLE orchestrator_notice (in_the_way)")
    with manage("prepare") as refused:
        said = refused.communicate()[0]
    with closing(sqlite3.connect(database)) as rows:
        rows.execute("DROP TABLE orchestrator_notice")

    assert refused.returncode == 1
    assert "The database could not be brought up to date (" in said
    assert "run the same command again." in said
    assert "Traceback" not in said
    for words in (["migrate", "--verbosity", "0"], ["migrate", "--check"]):
        with manage(*words) as again:
            assert (again.wait(), again.communicate()[0]) == (0, "")
