"""Which environments another server should have: those of jobs that wait, and of jobs that may have to go on there."""

from datetime import timedelta

from django.db.models import Q
from django.utils import timezone

from orchestrator.models import LEASED_STATES, WAITING_STATES, Device, Environment, EnvironmentState, Job
from orchestrator.nodes.packages import Wanted

WAITED = timedelta(seconds=3)  # jobs that start here at once need nothing elsewhere


def wanted_on(node: str) -> list[str]:
    """The names of the environments of jobs that could run on a node, the oldest first.

    Those on top of an interpreter of this server, and container images, are for this server alone.
    """
    pools = list(Device.objects.filter(node=node).values_list("pool", flat=True).distinct())
    long_waiting = Q(state__in=WAITING_STATES, queued_at__lt=timezone.now() - WAITED)
    jobs = Job.objects.filter(long_waiting | Q(state__in=LEASED_STATES), pool__in=pools)
    rows = Environment.objects.filter(
        pk__in=jobs.exclude(environment=None).values("environment"), state=EnvironmentState.READY
    )
    rows = rows.exclude(request__has_key="interpreter").exclude(request__has_key="image")
    return list(dict.fromkeys(rows.order_by("pk").values_list("key", flat=True)))


def to_build(key: str) -> Wanted | None:
    """An environment as another server builds it; None if it is gone."""
    row = Environment.objects.filter(key=key, state=EnvironmentState.READY).first()
    if row is None:
        return None
    return Wanted(row.key, row.lock, tuple(line for line in row.request["lines"] if line.startswith("-")))
