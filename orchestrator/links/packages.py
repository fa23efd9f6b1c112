"""Which environments another server should have: those of jobs that wait, and of jobs that may have to go on there."""

from datetime import timedelta

from django.db.models import Q
from django.utils import timezone

from orchestrator.models import LEASED_STATES, WAITING_STATES, Environment, EnvironmentState
from orchestrator.nodes.packages import Wanted

WAITED = timedelta(seconds=3)  # jobs that start here at once need nothing elsewhere
MOST = 50


def wanted_on(node: str) -> list[Wanted]:
    """The environments of jobs that could run on a node, the longest wait first.

    Those on top of an interpreter of this server, and container images, are for this server alone.
    """
    long_waiting = Q(jobs__state__in=WAITING_STATES, jobs__queued_at__lt=timezone.now() - WAITED)
    rows = (
        Environment.objects.filter(
            long_waiting | Q(jobs__state__in=LEASED_STATES),
            state=EnvironmentState.READY,
            jobs__pool__devices__node=node,
        )
        .exclude(request__has_key="interpreter")
        .exclude(request__has_key="image")
        .order_by("pk")
        .distinct()
    )
    return [
        Wanted(row.key, row.lock, tuple(line for line in row.request["lines"] if line.startswith("-")))
        for row in rows[:MOST]
    ]
