"""``/metrics`` for Prometheus, from the database and the newest readings; admins only."""

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db.models import Count, Min, Sum
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

import orchestrator
from orchestrator.api.http.authentication import SIGNED_IN
from orchestrator.api.http.errors import answer_error
from orchestrator.live import readings as live
from orchestrator.models import Attempt, Device, Job, JobState, Lease, Outbox, SchedulerTerm
from orchestrator.people import rights

# Per device: name of the metric, key in its newest reading, help text.
READINGS = (
    ("berth_device_memory_used_bytes", "used_bytes", "Memory in use by any process."),
    ("berth_device_memory_total_bytes", "total_bytes", "Total memory."),
    ("berth_device_foreign_bytes", "foreign_bytes", "Memory held by external processes."),
    ("berth_device_utilization_percent", "utilization_percent", "Utilization."),
    ("berth_device_temperature_celsius", "temperature_c", "Temperature."),
    ("berth_device_power_watts", "power_w", "Power drawn."),
)


@login_not_required  # the API's gate checks, for tokens as well
@require_safe
def show(request: HttpRequest) -> HttpResponse:
    """The exposition, built for each request; costs about ten grouped queries."""
    try:
        rights.check_admin(SIGNED_IN(request))
        text = generate_latest(_registry())
    except Exception as error:  # noqa: BLE001  # failures are answered like the API's
        return answer_error(request, error)
    return HttpResponse(text, content_type=CONTENT_TYPE_LATEST)


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector())
    return registry


class _Collector:
    def collect(self) -> Iterator[Metric]:
        yield _gauge("berth_build_info", "Version of Berth.", {(orchestrator.__version__,): 1}, "version")
        yield from _jobs()
        yield from _devices()
        yield from _health()

    def describe(self) -> list[Metric]:
        return []


def _jobs() -> Iterator[Metric]:
    counts = dict.fromkeys(JobState.values, 0)
    counts |= dict(Job.objects.order_by().values_list("state").annotate(Count("pk")))
    yield _gauge("berth_jobs", "Jobs by state.", {(state,): n for state, n in counts.items()}, "state")
    ended = (
        Attempt.objects.exclude(kind="").order_by().values_list("kind").annotate(Count("pk"), Sum("run_s"))
    )
    attempts = CounterMetricFamily("berth_attempts_ended", "Ended attempts by kind of end.", labels=["kind"])
    seconds = CounterMetricFamily("berth_attempt_seconds", "Run time of ended attempts.", labels=["kind"])
    for kind, count, run_s in ended:
        attempts.add_metric([kind], count)
        seconds.add_metric([kind], run_s or 0.0)
    yield attempts
    yield seconds
    now = timezone.now()
    waits = Job.objects.queued().order_by().values_list("pool").annotate(Count("pk"), Min("queued_at"))
    rows = [(pool, count, max(0.0, (now - oldest).total_seconds())) for pool, count, oldest in waits]
    yield _gauge("berth_queue_length", "Queued jobs.", {(pool,): n for pool, n, _ in rows}, "pool")
    oldest_s = {(pool,): wait_s for pool, _, wait_s in rows}
    yield _gauge(
        "berth_queue_oldest_wait_seconds",
        "Waiting time of the oldest queued job of a pool.",
        oldest_s,
        "pool",
    )


def _devices() -> Iterator[Metric]:
    held = set(Lease.objects.active().values_list("device_id", flat=True))
    rows = list(Device.objects.all())
    states = {(row.id, row.pool_id, row.admin_state, row.health): 1 for row in rows}
    labels = ("device", "pool", "admin_state", "health")
    yield _gauge("berth_device_info", "Devices and their state.", states, *labels)
    leased = {(row.id,): int(row.id in held) for row in rows}
    yield _gauge("berth_device_leased", "1 while a job holds the device.", leased, "device")
    readings = live.read_now()
    entries: Iterable[Mapping[str, Any]] = readings.devices
    for name, key, help_text in READINGS:
        values = {(each["id"],): each[key] for each in entries if each.get(key) is not None}
        yield _gauge(name, help_text, values, "device")
    age_s = max(0.0, time.time() - readings.taken_at) if readings.taken_at else float("inf")
    yield _gauge("berth_readings_age_seconds", "Age of the newest readings.", {(): age_s})


def _health() -> Iterator[Metric]:
    outbox = Outbox.objects.open().aggregate(count=Count("pk"), oldest=Min("created_at"))
    waits_s = max(0.0, (timezone.now() - outbox["oldest"]).total_seconds()) if outbox["oldest"] else 0.0
    yield _gauge("berth_errands_open", "Outbox rows not yet handled.", {(): outbox["count"]})
    yield _gauge("berth_errands_oldest_seconds", "Age of the oldest of them.", {(): waits_s})
    passes = CounterMetricFamily("berth_scheduling_passes", "Scheduling passes started.")
    passes.add_metric([], SchedulerTerm.objects.filter(pk=1).values_list("term", flat=True).first() or 0)
    yield passes
    disk = shutil.disk_usage(settings.HOME.root)
    yield _gauge("berth_disk_free_bytes", "Free space on the disk of BERTH_HOME.", {(): disk.free})
    yield _gauge("berth_disk_total_bytes", "Size of that disk.", {(): disk.total})


def _gauge(name: str, text: str, values: Mapping[Any, float], *labels: str) -> Metric:
    """A gauge; ``values`` are keyed by the tuple of label values."""
    gauge = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values.items():
        gauge.add_metric(list(label_values), value)
    return gauge
