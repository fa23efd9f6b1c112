"""``manage.py links``: start and follow jobs on the servers that joined this one."""

import signal
import threading
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from orchestrator.exceptions import OrchestratorError
from orchestrator.lending.serve import Lending
from orchestrator.links.serve import serve
from orchestrator.nodes.ray_cluster import Address


class Command(BaseCommand):
    help = "Serve the other servers of BERTH_NODES; `up` starts this."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.ENVIRONMENT.nodes is None:
            raise CommandError("BERTH_NODES is not set, so no other server can join this one.")
        stopping = threading.Event()

        def stop(_signal: int, _frame: FrameType | None) -> None:
            stopping.set()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        address = Address(*settings.ENVIRONMENT.nodes)
        lending = Lending(str(address), stopping)
        lending.start()
        try:
            serve(address, stopping)
        except OrchestratorError as error:
            raise CommandError(str(error)) from None
        finally:
            stopping.set()
            lending.join(timeout=2)
