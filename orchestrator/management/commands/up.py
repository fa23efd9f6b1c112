"""``manage.py up``: run all of Berth in one terminal until Ctrl-C."""

import contextlib
import fcntl
import os
import signal
import time
from multiprocessing import get_context
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from berth.shared.words import server_command
from orchestrator.jobs import example
from orchestrator.jobs.launch import interpreters, isolation
from orchestrator.models import Attempt
from orchestrator.server.operation import first_start
from orchestrator.server.operation.services import CannotStart, Services
from orchestrator.sessions.addresses import port_problem

WATCH_EVERY_S = 0.25


class Command(BaseCommand):
    help = "Start web, worker, agent and Redis; Ctrl-C stops them all."
    requires_system_checks = ()  # they check our code, which CI does, and cost 1.2 s of processor

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--example", action="store_true", help="submit the example job and show its progress"
        )
        parser.add_argument("--once", action="store_true", help="with --example: exit when the job has ended")

    def handle(self, *args: Any, **options: Any) -> None:
        self.stopping = False
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        lock = (settings.HOME.root / "up.lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise CommandError(
                f"Berth is already running for {settings.HOME.root}. Stop it with `{server_command('down')}`, "
                "or set BERTH_HOME and BERTH_PORT for a second instance."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._prepare()
        services = Services(settings.ENVIRONMENT, settings.BASE_DIR, self._tell)
        try:
            services.start()
            self._serve(services, **options)
        except CannotStart as error:
            raise CommandError(str(error)) from None
        finally:
            self._tell("Stopping web, worker, agent and Redis ...")
            services.stop()
            self._report_running()

    def _stop(self, _signal: int, _frame: FrameType | None) -> None:
        self.stopping = True

    def _tell(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a log on a full disk, a terminal that is gone: watching goes on
            self.stdout.write(text)
            self.stdout.flush()

    def _prepare(self) -> None:
        """Prepare in a child process: the 80 MiB that this takes would stay in this one for weeks."""
        self._tell(f"State folder {settings.HOME.root}")
        connections.close_all()  # the child must not share them
        child = get_context("fork").Process(target=self._prepare_here)
        child.start()
        child.join()
        if child.exitcode:
            raise SystemExit(1)  # the child has printed why

    def _prepare_here(self) -> None:
        try:
            first_start.prepare(self._tell)
            if words := interpreters.warning():
                self.stderr.write(words)
            if reason := isolation.refusal():
                self.stderr.write(f"Jobs run without a sandbox. {reason.sentence}")
        except (CommandError, first_start.NotBroughtUpToDate) as error:
            self.stderr.write(str(error))
            raise SystemExit(1) from None

    def _serve(self, services: Services, **options: Any) -> None:
        address = f"http://localhost:{settings.ENVIRONMENT.port}/"
        self._tell(f"Berth is at {address}  (web, worker, agent and Redis answer; Ctrl-C stops them)")
        if problem := port_problem(settings.HOME.services):
            self._tell(problem)
        follow = example.ExampleJob(self._tell, address) if options["example"] else None
        while not self.stopping:
            services.watch()
            if follow is not None and follow.ended() and options["once"]:
                if not follow.succeeded:
                    raise CommandError(f"The example job did not succeed: {follow.why}")
                return
            time.sleep(WATCH_EVERY_S)

    def _report_running(self) -> None:
        count = Attempt.objects.live().exclude(launched_at=None).count()
        if count:
            running = "1 training keeps" if count == 1 else f"{count} trainings keep"
            up, down = server_command("up"), server_command("down")
            self._tell(f"{running} running; the next `{up}` finds them, `{down}` stops them.")
        self._tell("Berth has stopped.")
