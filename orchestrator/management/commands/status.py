"""``manage.py status``: whether Berth runs here and what of it answers, for an operator or a script."""

import http.client
import json
import sys
from typing import Any, TypedDict

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError

import berth
from berth.shared.words import plural, server_command
from orchestrator.models import Attempt

PATH = "/api/v1/health/ready"
ANSWERS_WITHIN_S = 10.0
_EVERYWHERE = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 -- where others listen, not we
NOT_RUNNING = "not_running"


class DependencyStatus(TypedDict):
    """What the server says of a part that it needs."""

    state: str
    detail: str


class ServerStatus(TypedDict):
    """What the web server says of itself."""

    status: str
    address: str
    dependencies: dict[str, DependencyStatus]


class ToldStatus(ServerStatus):
    """What the command shows."""

    version: str
    home: str
    trainings: int | None


class Command(BaseCommand):
    help = "Show whether Berth runs here and what of it answers; exit status 1 unless all of it does."
    requires_system_checks = ()  # they check our code, and cost 1.2 s of processor

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="output as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        told: ToldStatus = {
            **ask(settings.ENVIRONMENT.bind, settings.ENVIRONMENT.port),
            "version": berth.__version__,
            "home": str(settings.HOME.root),
            "trainings": trainings(),
        }
        if options["json"]:
            self.stdout.write(json.dumps(told))
        else:
            self._tell(told)
        if told["status"] != "ready":
            sys.exit(1)

    def _tell(self, told: ToldStatus) -> None:
        self.stdout.write(f"Berth {told['version']}, state folder {told['home']}")
        if told["status"] == NOT_RUNNING:
            self.stdout.write(
                f"Berth does not answer at {told['address']}. Start it with `{server_command('up')}`."
            )
        else:
            self.stdout.write(f"Berth answers at {told['address']}: {told['status'].replace('_', ' ')}")
        for name, each in told["dependencies"].items():
            self.stdout.write(f"  {name}: {'' if each['state'] == 'ok' else 'FAILING, '}{each['detail']}")
        if told["trainings"] is not None:
            self.stdout.write(f"{plural(told['trainings'], 'training')} running")


def ask(bind: str, port: int) -> ServerStatus:
    """What the web server at an address says of itself; ``not_running`` if nothing answers."""
    address = f"http://localhost:{port}/"
    silent: ServerStatus = {"status": NOT_RUNNING, "address": address, "dependencies": {}}
    connection = http.client.HTTPConnection(
        "127.0.0.1" if bind in _EVERYWHERE else bind, port, timeout=ANSWERS_WITHIN_S
    )
    try:
        connection.request("GET", PATH, headers={"Host": "localhost"})
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return silent
    finally:
        connection.close()
    if not isinstance(answer, dict) or "dependencies" not in answer:
        return silent  # another program has the port
    return {"status": answer["status"], "address": address, "dependencies": answer["dependencies"]}


def trainings() -> int | None:
    """How many attempts run here; None if no database tells."""
    try:
        return Attempt.objects.live().exclude(launched_at=None).count()
    except DatabaseError:
        return None
