"""What pages say of jobs that share a device."""

import pytest
from django.utils import timezone

from orchestrator.jobs.memory_claims import memory_key
from orchestrator.models import JobState, LoneRun, Slowdown
from orchestrator.spec.job_spec import GIB


@pytest.fixture
def pair(make_attempt, make_device):
    """Two jobs on one device, of which the first was seen to be 18 % slower beside the second."""
    device = make_device(0)
    jobs = [
        make_attempt(
            state=JobState.RUNNING,
            devices=[device],
            memory_bytes=GIB,
            name=name,
            spec={"args": [name], "gpu_memory_gib": 1},
        ).job
        for name in ("vit-s", "ner")
    ]
    vit, ner = (memory_key(job.spec_fields, job.bundle) for job in jobs)
    facts = {"device_name": device.name, "runs": 99, "seen_at": timezone.now()}
    for work in (vit, ner):
        LoneRun.objects.create(work=work, use=0.5, steps_per_s=1.0, **facts)
    Slowdown.objects.create(work=vit, other=ner, slowdown=1.18, **facts)
    return jobs


@pytest.mark.parametrize("address", ["/jobs/{job}", "/devices/sim-0"], ids=["job", "device"])
def test_page_says_who_is_slower_beside_whom(pair, reader, ada, address):
    page = reader(ada).get(address.format(job=pair[0].pk)).content.decode()

    assert "vit-s is 18 % slower beside ner." in page
