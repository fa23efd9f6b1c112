"""``manage.py serve NAME``: run one of Berth's processes, for systemd units and containers."""

import os
import subprocess
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from orchestrator.agent.stopping import StopRequest, on_signals
from orchestrator.server.operation.services import (
    ENDED_AT_START_S,
    CannotStart,
    Services,
    put_redis_aside,
    ray_service,
    redis_command,
    web_command,
    worker_command,
)

WATCH_EVERY_S = 0.25


class Command(BaseCommand):
    help = "Run web, worker, Redis or Ray in this process, or supervise worker and agent (runner)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "name", choices=["web", "worker", "redis", "ray", "runner"], help="process to run"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        environment = settings.ENVIRONMENT
        if options["name"] == "runner":
            self._keep_running(Services(environment, settings.BASE_DIR, self.stdout.write))
            return
        try:
            match options["name"]:
                case "web":
                    command = web_command(environment)
                case "worker":
                    command = worker_command()
                case "ray":
                    if environment.nodes is None:
                        raise CommandError("BERTH_NODES is not set, so no other server can join this one.")
                    ray = ray_service(environment, *environment.nodes)
                    if ray.prepare is not None:
                        ray.prepare()
                    os.environ.update(ray.variables)
                    command = list(ray.command)
                case _:
                    command = redis_command(environment)
                    self._try_redis(command)
        except CannotStart as error:
            raise CommandError(str(error)) from None
        os.chdir(settings.BASE_DIR)
        os.execv(command[0], list(command))  # noqa: S606  # our own commands, no shell

    def _keep_running(self, services: Services) -> None:
        """Run worker and agent until SIGTERM; trainings continue if the container does."""
        stopping = StopRequest()
        on_signals(stopping)
        services.start_runner()
        while not stopping.wait(WATCH_EVERY_S):
            services.watch()
        services.stop()

    def _try_redis(self, command: Sequence[str]) -> None:
        """Start Redis once to see whether it can read its data; move unreadable data aside."""
        process = subprocess.Popen(command)  # noqa: S603  # our own command, no shell
        try:
            if process.wait(ENDED_AT_START_S / 5) > 0:
                put_redis_aside(settings.ENVIRONMENT)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
