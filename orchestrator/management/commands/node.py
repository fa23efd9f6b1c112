"""``manage.py node``: make this server a node of another one, and look after the nodes of this one."""

import importlib.util
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from berth.shared import words
from orchestrator.jobs.launch.engines import order_of
from orchestrator.live import wakeups
from orchestrator.models import AdminState, Attempt, Device, Pilot
from orchestrator.nodes import ray_cluster
from orchestrator.nodes.copies import Copy
from orchestrator.nodes.ray_cluster import Address
from orchestrator.nodes.reports import read_reports
from orchestrator.nodes.runs import folder_of
from orchestrator.people import audit
from orchestrator.server.operation.services import Service
from orchestrator.supervisor.liveness import Liveness

ACTOR = "manage.py"  # in the audit
WATCH_EVERY_S = 0.25
AGAIN_AFTER_S = 2.0
_DATASET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}(@[A-Za-z0-9._-]{1,32})?")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Command(BaseCommand):
    help = "Join another server of Berth, or list and drain the servers that joined this one."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        join = actions.add_parser("join", help="run here what makes this server a node, until Ctrl-C")
        join.add_argument("head", help="address that the other server has in its BERTH_NODES")
        join.add_argument(
            "--token-file", type=Path, required=True, help="copy of the file `node token` names"
        )
        join.add_argument(
            "--name", default=os.uname().nodename.split(".", 1)[0].lower(), help="of this server, for people"
        )
        join.add_argument("--address", help="of this server, as the other one reaches it")
        join.add_argument(
            "--data",
            action="append",
            default=[],
            metavar="NAME=PATH",
            help="a dataset of the other server that is also here; repeatable",
        )
        actions.add_parser("token", help="the file with the token of this server's nodes")
        actions.add_parser("list", help="the servers that joined this one")
        for name, text in (
            ("drain", "start nothing more on a server"),
            ("resume", "start jobs on it again"),
        ):
            actions.add_parser(name, help=text).add_argument("name")

        leave = actions.add_parser("leave", help="forget a server that will not come back")
        leave.add_argument("name")
        leave.add_argument(
            "--lost", action="store_true", help="its jobs do not run any more, and go on elsewhere"
        )

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        match action:
            case "join":
                data = dict(_dataset(text) for text in options["data"])
                head = _address(options["head"])
                self._join(head, options["token_file"], options["name"], options["address"], data)
            case "token":
                ray_cluster.make_token(settings.HOME.nodes / "token")
                self.stdout.write(str(settings.HOME.nodes / "token"))
            case "list":
                self._list()
            case "leave":
                self._forget(options["name"], lost=options["lost"])
            case "drain":
                self._set(options["name"], AdminState.DRAINING)
            case "resume":
                self._set(options["name"], AdminState.ENABLED)

    def _join(
        self, head: Address, token_file: Path, name: str, here: str | None, data: Mapping[str, str]
    ) -> None:
        """Be a node of the other server until Ctrl-C."""
        if not _NAME.fullmatch(name) or name == "local":
            raise CommandError(
                f"{name!r} cannot be the name of a server; give small letters, digits and hyphens with --name."
            )
        try:
            token = token_file.read_text().strip()
        except OSError as error:
            raise CommandError(f"The token file {token_file} cannot be read: {error.strerror}.") from None
        if not token:
            raise CommandError(
                f"The token file {token_file} is empty. Copy the one that `node token` names on the other server."
            )
        if importlib.util.find_spec("ray") is None:
            raise CommandError("Ray is not installed here: install Berth with its extra `nodes`.")
        home = settings.HOME
        ours = home.nodes / "joined_with"
        home.nodes.mkdir(mode=0o700, parents=True, exist_ok=True)
        ours.write_text(token)
        ours.chmod(0o600)
        slots = settings.ENVIRONMENT.cpu_slots
        here = here or _address_towards(head)
        variables = {
            **ray_cluster.environment(ours),
            ray_cluster.NAME: name,
            ray_cluster.HOME: str(home.root),
            ray_cluster.ADDRESS: here,
            ray_cluster.DATA: json.dumps(data),
            ray_cluster.DEVICES: settings.ENVIRONMENT.devices,
            ray_cluster.SLOTS: "auto" if slots is None else str(slots),
        }
        try:
            folder = ray_cluster.short_folder(home.root)
        except ray_cluster.NoRay as error:
            raise CommandError(str(error)) from None
        command = ray_cluster.join_command(head, here, name, folder)
        self.stdout.write(f"Joining {head} as {name}; Ctrl-C leaves it, and what runs here goes on.")
        self.stdout.flush()
        member = Service("node", command, variables=variables)
        self._keep_joined(member, head)

    def _keep_joined(self, member: Service, head: Address) -> None:
        """Run Ray until Ctrl-C, and again each time it ends: the other server may be away for a while.

        Raises:
            CommandError: the other server refuses us, which no repetition changes.
        """
        stopping = threading.Event()

        def stop(_signal: int, _frame: FrameType | None) -> None:
            stopping.set()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        log = settings.HOME.logs / f"{member.name}.log"
        while not stopping.is_set():
            size_bytes = log.stat().st_size if log.exists() else 0
            member.start(settings.BASE_DIR, settings.HOME)
            while member.alive and not stopping.wait(WATCH_EVERY_S):
                pass
            if not stopping.is_set():
                self.stdout.write(
                    f"{_why_ended(_read_from(log, size_bytes), head)} Joining again; log: {log}"
                )
                self.stdout.flush()
                stopping.wait(AGAIN_AFTER_S)
        member.kill()

    def _list(self) -> None:
        reports = read_reports(settings.HOME.nodes)
        pilots = {pilot.name: pilot for pilot in Pilot.objects.open()}
        if not reports and not pilots:
            self.stdout.write("No other server has joined this one.")
        for report in reports:
            answers = (
                f"silent for {words.duration(time.time() - report.at)}" if report.is_silent else "answers"
            )
            live = Attempt.objects.on_node(report.name).count()
            draining = Device.objects.filter(node=report.name, admin_state=AdminState.DRAINING).exists()
            self.stdout.write(
                f"{report.name}  {answers}{', draining' if draining else ''}  "
                f"{words.plural(len(report.devices), 'device')}, {words.plural(live, 'job')}"
                f"{_lent(pilots.pop(report.name, None))}"
            )
        for pilot in pilots.values():
            self.stdout.write(f"{pilot.name}  {'coming' if pilot.held_at else 'waiting'}{_lent(pilot)}")

    def _forget(self, name: str, *, lost: bool) -> None:
        report = next((each for each in read_reports(settings.HOME.nodes) if each.name == name), None)
        if report is None:
            raise CommandError(f"No server {name} has joined this one.")
        if not report.is_silent:
            raise CommandError(f"{name} still answers. End `node join` there first.")
        attempts = list(Attempt.objects.on_node(name))
        if attempts and not lost:
            raise CommandError(
                f"{words.plural(len(attempts), 'job')} may still run on {name}. If they do not, say --lost: they go on "
                "from their checkpoints elsewhere, and are ended there should it ever answer again."
            )
        for attempt in attempts:
            order = order_of(attempt)._replace(part="" if attempt.node == name else name)
            Copy(folder_of(settings.HOME, order), order.nonce).note(Liveness.LOST)
        (settings.HOME.nodes / f"{name}.json").unlink()
        text = f"{name} is forgotten; it may join again."
        audit.record(
            ACTOR, "node.left", f"node {name}", f"{text} Lost with it: {words.plural(len(attempts), 'job')}."
        )
        self.stdout.write(text)

    def _set(self, name: str, state: AdminState) -> None:
        changed = (
            Device.objects.filter(node=name)
            .exclude(admin_state=AdminState.DISABLED)
            .update(admin_state=state, drain_reason="", drain_until=None)
        )
        if not changed:
            raise CommandError(f"No server {name} has joined this one.")
        text = f"{words.plural(changed, 'device')} of {name}: {state.label.lower()}."
        audit.record(ACTOR, "node.state", f"node {name}", text)
        wakeups.schedule()
        wakeups.publish("devices")
        self.stdout.write(text)


def _lent(pilot: Pilot | None) -> str:
    """What is to be said of a server that a cluster lends."""
    if pilot is None:
        return ""
    grant = f" {pilot.grant}" if pilot.grant else ""
    reason = f" ({pilot.reason})" if pilot.reason else ""
    moment = pilot.until or pilot.expected_at
    if moment is None:
        return f"  {pilot.get_system_display()}{grant}{reason}"
    in_s = (moment - timezone.now()).total_seconds()
    when = f"{'ends' if pilot.until else 'expected'} in {words.duration(max(0.0, in_s))}"
    return f"  {pilot.get_system_display()}{grant}{reason}, {when}"


def _dataset(text: str) -> tuple[str, str]:
    """A dataset's name and its folder or file here."""
    name, _, path = text.partition("=")
    if not _DATASET.fullmatch(name) or not path:
        raise CommandError(f"{text!r} names no dataset; give NAME=PATH or NAME@VERSION=PATH.")
    place = Path(path).expanduser()
    if not place.is_absolute() or not place.exists():
        raise CommandError(
            f"There is nothing at {path}; give the absolute path of dataset {name} on this server."
        )
    return name, os.path.realpath(place)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise CommandError(
            f"{text!r} is no address; give host:port, as BERTH_NODES of the other server has it."
        )
    return Address(host, int(port))


def _address_towards(head: Address) -> str:
    """The address of this server on the network that leads to another one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(head)
        except OSError as error:
            raise CommandError(f"{head} cannot be reached from here: {error.strerror}.") from None
        return str(probe.getsockname()[0])


def _read_from(log: Path, offset: int) -> str:
    with log.open("rb") as file:
        file.seek(offset if offset <= log.stat().st_size else 0)  # a large log was rotated in between
        return file.read().decode(errors="replace")


def _why_ended(said: str, head: Address) -> str:
    """Why Ray has ended here, from what it printed.

    Raises:
        CommandError: the other server refuses us.
    """
    if "InvalidAuthToken" in said:
        raise CommandError(
            f"{head} refuses this token. Copy the file again that `{words.server_command('node token')}` names there."
        )
    if "Version mismatch" in said:
        line = next(line for line in said.splitlines() if "Version mismatch" in line)
        raise CommandError(
            f"{head} has another version of Ray or Python; install the same here. {line.strip()}"
        )
    return f"{head} does not answer." if "Failed to connect to GCS" in said else "Ray has ended."
