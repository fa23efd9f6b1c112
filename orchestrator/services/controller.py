"""Keeps the replicas of services as they should be: begins, replaces and stops them, and stops a service that only dies.

Everything is derived from rows, and each step may be repeated; the agent calls ``advance`` every second, and the door
begins the first replica itself, so that nobody waits for that second.
"""

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

from django.db import connection
from django.utils import timezone

from orchestrator.exceptions import DevicesAway, OrchestratorError, TooMany, Unavailable
from orchestrator.facts.events import ServiceFact
from orchestrator.facts.record import NOTHING, Fact, fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import IllegalTransition
from orchestrator.jobs.submission import intake
from orchestrator.models import FINAL_STATES, Job, JobState, Service, ServiceReplica, ServiceState
from orchestrator.sentences import say_json
from orchestrator.services import health

logger = logging.getLogger(__name__)

ACTOR = "service"
MOST_FAILURES = 3
WITHIN = timedelta(minutes=10)  # that many failures: it dies in a loop
LEAST_IDLE_S = 3.0  # the row learns of waiting requests once a second, or later on a busy machine
DRAIN_MOST_S = 30.0  # what a retired replica still answers
DRAIN_IDLE_S = 2.0  # nobody asks it; the door learns within a second that it gets no further request


class _Enough(Exception):
    """No replica is to begin: another process was first, or the service is off by now."""


def advance(service: Service, now: datetime) -> None:
    """Bring the replicas of one service up to date."""
    look_at_replicas([service], now)
    _keep(service, now)


def _keep(service: Service, now: datetime) -> None:
    if service.state != ServiceState.ON:
        end_replicas(service)
        return
    _replace_old(service, now)
    _stop_retired(service, now)
    current = [each for each in open_replicas(service) if each.revision == service.revision]
    for replica in _beyond(service, current, now):
        _retire(replica, now)
    target = _target(service, now)
    if target <= len(current):
        _forget_wait(service)
    elif not _dies(service, now):
        for count in range(len(current), target):
            if not begin_replica(service, count):
                return


def advance_all(services: Iterable[Service]) -> None:
    """In a thread of the agent: a replica that answers nothing must not delay a turn of it.

    One service that cannot be kept, because what is stored of it is broken, leaves the others alone.
    """
    try:
        services = list(services)
        look_at_replicas(services, timezone.now())
        for service in services:
            try:
                _keep(service, timezone.now())
            except Exception:
                logger.exception("Keeping the service %s failed; retrying", service.name)
    except Exception:
        logger.exception("Keeping services failed; retrying")
    finally:
        connection.close()


def at_work() -> Iterable[Service]:
    """The services that ``advance`` may have to do something for."""
    with_replicas = ServiceReplica.objects.exclude(job__state__in=FINAL_STATES).values("service")
    on = Service.objects.filter(state=ServiceState.ON)
    return (on | Service.objects.filter(pk__in=with_replicas)).select_related("owner").distinct()


def open_replicas(service: Service) -> list[ServiceReplica]:
    """Those that have not ended and still get requests, oldest first."""
    rows = ServiceReplica.objects.filter(service=service, retired_at=None).exclude(
        job__state__in=FINAL_STATES
    )
    return list(rows.select_related("job"))


def ready_replicas(service: Service) -> list[ServiceReplica]:
    """Those that requests can go to: of the newest revision, and then older ones for those that do not answer yet.

    Where several are as busy, a request goes to the first: who changed the code sees the new one at work.
    """
    rows = open_replicas(service)
    replaced = _replaced(service, rows, timezone.now())
    ready = [each for each in rows if is_serving(each) and each not in replaced]
    return sorted(ready, key=lambda each: -each.revision)


def is_serving(replica: ServiceReplica) -> bool:
    job = replica.job
    return job.state == JobState.RUNNING and 0 < replica.ready_attempt == job.attempt_count


def look_at_replicas(services: Iterable[Service], now: datetime) -> bool:
    """Ask the replicas that are not ready yet, all at once, for up to two seconds; True where one has become so."""
    asked = [(each, service.health_path) for service in services for each in unready_replicas(service)]
    ready = health.ready_among(asked)
    note_ready(ready, now)
    return bool(ready)


def unready_replicas(service: Service) -> list[ServiceReplica]:
    """Those that run and have not answered yet."""
    running = [each for each in open_replicas(service) if each.job.state == JobState.RUNNING]
    return [each for each in running if not is_serving(each)]


def note_ready(replicas: Iterable[ServiceReplica], now: datetime) -> None:
    """Let requests go to these replicas, which were just found ready."""
    for replica in replicas:
        replica.ready_attempt, replica.ready_at = replica.job.attempt_count, now
        replica.save(update_fields=["ready_attempt", "ready_at"])


def note_unready(job_id: UUID, attempt: int) -> None:
    """A replica does not listen, though it was ready; it gets requests once it answers again."""
    ServiceReplica.objects.filter(job=job_id, ready_attempt=attempt).update(ready_attempt=0)


def begin_first(service: Service) -> None:
    """Begin a replica for requests that wait, unless those before it only failed.

    Where none could be submitted the agent tries again each second, while waiting requests call this twenty times.
    """
    if not _waits(service) and not _dies(service, timezone.now()):
        begin_replica(service, 0)


def begin_replica(service: Service, beside: int) -> bool:
    """Take back a replica that was retired, or submit one of the newest revision; False where none may be begun now.

    Args:
        beside: the open replicas of this revision; more of them means that another process was first.
    """
    if _take_back(service):
        return True
    if not isinstance(service.job_fields, dict):
        _fail(service, fact(ServiceFact.CANNOT_SUBMIT, problem="what is stored of its job cannot be read."))
        return False
    number = ServiceReplica.objects.filter(service=service).count() + 1
    fields = {**service.job_fields, "name": f"{service.name} {number}", "source": {"bundle": service.bundle}}

    def write(job: Job) -> None:
        # As it is now: it may have been stopped or removed since it was read, and would leave this replica behind.
        rows = Service.objects.select_for_update().filter(pk=service.pk)
        if rows.values_list("state", flat=True).first() != ServiceState.ON:
            raise _Enough
        current = [each for each in open_replicas(service) if each.revision == service.revision]
        if len(current) > beside:
            raise _Enough
        ServiceReplica.objects.create(service=service, job=job, revision=service.revision)

    try:
        spec = intake.parse_spec(fields)
        intake.accept(service.owner, spec, uploaded=service.bundle, beside=write, continues=True)
    except _Enough:
        return False
    except (TooMany, Unavailable, DevicesAway) as error:  # later there may be room, a disk or devices
        _note(service, fact(ServiceFact.CANNOT_SUBMIT, problem=str(error)))
        return False
    except OrchestratorError as error:
        _fail(service, fact(ServiceFact.CANNOT_SUBMIT, problem=str(error)))
        return False
    _forget_wait(service)
    return True


def _take_back(service: Service) -> bool:
    """Let a replica of the newest revision that was retired and still runs answer again."""
    for replica in _still_open(service):
        if replica.revision == service.revision and is_serving(replica):
            replica.retired_at = None
            replica.save(update_fields=["retired_at"])
            return True
    return False


def end_replicas(service: Service) -> None:
    """Stop all replicas now."""
    for replica in open_replicas(service):
        _retire(replica, timezone.now())
    for replica in _still_open(service):
        _cancel(replica, fact(ServiceFact.REPLICA_NOT_NEEDED))


def _target(service: Service, now: datetime) -> int:
    """How many replicas of the newest revision there should be; none while the account that its keys need is disabled."""
    if not service.owner.is_active:
        return 0
    if _is_idle(service, now):
        return service.min_replicas
    return min(service.max_replicas, max(service.min_replicas, service.wanted, 1))


def _is_idle(service: Service, now: datetime) -> bool:
    """Whether nobody has asked it, and no answer was on its way, for as long as its owner said."""
    idle = timedelta(seconds=max(service.idle_s, LEAST_IDLE_S))
    return service.asked_at is None or now - service.asked_at > idle


def _beyond(service: Service, current: list[ServiceReplica], now: datetime) -> list[ServiceReplica]:
    """The replicas that are not needed any more, newest first."""
    return current[::-1][: max(0, len(current) - _target(service, now))]


def _replace_old(service: Service, now: datetime) -> None:
    """Retire a replica of an older revision for each newer one that answers."""
    rows = open_replicas(service)
    replaced = _replaced(service, rows, now)
    for replica in replaced:
        _retire(replica, now)
    if replaced and service.why and _answering(service, rows):
        _change(service, why=NOTHING.as_json())


def _replaced(service: Service, rows: list[ServiceReplica], now: datetime) -> list[ServiceReplica]:
    """The replicas of older revisions that go now: one for each newer one that answers, and what is beyond the target.

    None goes before a newer one answers, unless nobody asks the service; those that do not answer go first.
    """
    old = sorted((each for each in rows if each.revision < service.revision), key=is_serving)
    if not old:
        return []
    target, answering = _target(service, now), _answering(service, rows)
    if target == 0:
        return old
    if not answering:
        return []
    began = min(each.ready_at or now for each in answering)
    older = ServiceReplica.objects.filter(service=service, revision__lt=service.revision)
    gone = older.filter(retired_at__gte=began).count()
    missing = max(0, target - len(answering))
    return old[: max(0, len(answering) - gone, len(old) - missing)]


def _answering(service: Service, rows: list[ServiceReplica]) -> list[ServiceReplica]:
    """Those of the newest revision that requests can go to."""
    return [each for each in rows if each.revision == service.revision and is_serving(each)]


def _stop_retired(service: Service, now: datetime) -> None:
    """Stop what was retired, once it has had time to answer what it had begun."""
    drain_s = min(DRAIN_IDLE_S if _is_idle(service, now) else DRAIN_MOST_S, service.deadline_s)
    for replica in _still_open(service):
        waited_s = (now - (replica.retired_at or now)).total_seconds()
        if waited_s > drain_s or not is_serving(replica):
            why = fact(ServiceFact.REPLICA_IDLE, idle_s=service.idle_s)
            if replica.revision < service.revision:
                why = fact(ServiceFact.REPLICA_REPLACED)
            _cancel(replica, why)


def _still_open(service: Service) -> list[ServiceReplica]:
    rows = ServiceReplica.objects.filter(service=service, retired_at__isnull=False)
    stopping = (*FINAL_STATES, JobState.STOPPING)
    return list(rows.exclude(job__state__in=stopping).select_related("job"))


def _dies(service: Service, now: datetime) -> bool:
    """Whether the newest revision's replicas fail one after the other; the service then stops, or keeps the last revision."""
    since = max(service.changed_at, now - WITHIN)
    rows = ServiceReplica.objects.filter(
        service=service, revision=service.revision, job__state__in=FINAL_STATES
    )
    newest = list(rows.select_related("job").order_by("-job__ended_at", "-pk")[:MOST_FAILURES])
    failed = [
        each for each in newest if each.job.state == JobState.FAILED and (each.job.ended_at or now) >= since
    ]
    if len(failed) < MOST_FAILURES:
        return False
    error = say_json(failed[0].job.ending) or failed[0].job.exit_detail
    if any(each.revision < service.revision for each in open_replicas(service)):
        why = fact(ServiceFact.UPDATE_FAILED, times=MOST_FAILURES, error=error)
        if service.why != why.as_json():
            _change(service, why=why.as_json())
    else:
        _fail(service, fact(ServiceFact.DIES_AGAIN, times=MOST_FAILURES, error=error))
    return True


def _waits(service: Service) -> bool:
    """Whether a service that is on could submit no replica when it last tried."""
    return service.state == ServiceState.ON and Fact.read(service.why).code == ServiceFact.CANNOT_SUBMIT


def _note(service: Service, why: Fact) -> None:
    """Say beside a service that is on what it waits for."""
    if service.why != why.as_json():
        _change(service, why=why.as_json())


def _forget_wait(service: Service) -> None:
    if _waits(service):
        _note(service, NOTHING)


def _fail(service: Service, why: Fact) -> None:
    logger.warning("Service %s stops: %s", service, why)
    _change(service, state=ServiceState.FAILED, why=why.as_json())


def _retire(replica: ServiceReplica, now: datetime) -> None:
    replica.retired_at = now
    replica.save(update_fields=["retired_at"])


def _cancel(replica: ServiceReplica, why: Fact) -> None:
    try:
        lifecycle.cancel(replica.job, by=ACTOR, why=why)
    except IllegalTransition:
        logger.info("%s ended before its service stopped it.", replica.job)


def _change(service: Service, **changes: object) -> None:
    for name, value in changes.items():
        setattr(service, name, value)
    service.save(update_fields=list(changes))
