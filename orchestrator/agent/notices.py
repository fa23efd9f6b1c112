"""Sends notices from a separate thread, because a mail server that hangs must not delay anything else."""

import logging
import threading
from datetime import datetime, timedelta

from django.db import Error, close_old_connections, connections
from django.utils import timezone

from orchestrator.agent.stopping import Stopping
from orchestrator.exceptions import OrchestratorError
from orchestrator.people.notices import delivery, events

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
OVERLAP = timedelta(seconds=30)  # a slow transaction can commit events older than some already read


class NoticesThread(threading.Thread):
    def __init__(self, stopping: Stopping) -> None:
        super().__init__(name="notices", daemon=True)
        self.stopping = stopping
        self.since: datetime | None = None  # None: as far back as notices are sent

    def run(self) -> None:
        while not self.stopping.wait(LOOK_EVERY_S):
            close_old_connections()
            try:
                self.turn(timezone.now())
            except Error as error:
                logger.warning("Notices wait for the database: %s", error)
            except OrchestratorError as error:
                logger.warning("%s", error)
        connections.close_all()

    def turn(self, now: datetime) -> None:
        """Read the events since the last turn, and send the notices that are due."""
        events.collect(now, self.since or now - events.READ_BACK)
        self.since = now - OVERLAP
        delivery.deliver_due(now)
