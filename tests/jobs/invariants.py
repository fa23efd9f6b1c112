"""What must hold after every step (docs/reliability.md, 4.3)."""

from collections import defaultdict

from orchestrator.models import LEASED_STATES, Attempt, AttemptState, Errand, Job, JobEvent, Lease, Outbox


def check_invariants() -> None:
    attempts: dict[object, list[Attempt]] = defaultdict(list)
    for attempt in Attempt.objects.order_by("number"):
        attempts[attempt.job_id].append(attempt)
    leases = list(Lease.objects.active().select_related("attempt", "device"))
    events: dict[object, list[JobEvent]] = defaultdict(list)
    for event in JobEvent.objects.order_by("number"):
        events[event.job_id].append(event)
    for job in Job.objects.all():
        check_attempts(job, attempts[job.pk], [each for each in leases if each.attempt.job_id == job.pk])
        check_history(job, events[job.pk])
    check_devices(leases)
    check_errands()


def check_attempts(job: Job, attempts: list[Attempt], leases: list[Lease]) -> None:
    numbers = [attempt.number for attempt in attempts]
    assert numbers == list(range(1, job.attempt_count + 1)), f"I7: {numbers} of {job.attempt_count}"
    live = [attempt for attempt in attempts if attempt.state != AttemptState.ENDED]
    assert live in ([], attempts[-1:]), "I2, I7: only the last attempt may live"
    holds = job.state in LEASED_STATES
    assert bool(live) == holds, f"I5: {job.state} with {len(live)} living attempts"
    assert len(leases) == (job.gpus if holds else 0), f"I5: {job.state} with {len(leases)} leases"
    assert all(lease.attempt_id == live[0].pk for lease in leases), "I5: a lease of an ended attempt"


def check_history(job: Job, events: list[JobEvent]) -> None:
    state = ""
    assert [event.number for event in events] == list(range(1, job.event_count + 1)), "I19"
    for event in events:
        assert event.from_state == state, f"I8: {event} does not follow {state!r}"
        state = event.to_state
    assert state == job.state, f"I8: the events end in {state}, the job is {job.state}"


def check_devices(leases: list[Lease]) -> None:
    held: dict[str, list[Lease]] = defaultdict(list)
    for lease in leases:
        held[lease.device_id].append(lease)
    for device_id, there in held.items():
        if any(lease.memory_bytes is None for lease in there):
            assert len(there) == 1, f"I3: {device_id} is held whole and shared"
        else:
            claimed = sum(lease.memory_bytes or 0 for lease in there)
            assert claimed <= there[0].device.memory_bytes, f"I3: {device_id} is overbooked"


def check_errands() -> None:
    for errand in Outbox.objects.open().filter(errand=Errand.LAUNCH):
        live = Attempt.objects.live().filter(job=errand.job_id, number=errand.number)
        assert live.exists(), f"I12: {errand} has nothing to launch any more"
