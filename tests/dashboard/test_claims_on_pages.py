"""What a job's page says of its memory claim, and of devices that it leaves unused."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from orchestrator.models import Job, JobState, Pool
from orchestrator.spec.job_spec import GIB
from tests.dashboard.markup import html_of


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (
            {"bytes": 12 * GIB, "source": "learned", "error_percent": 8.5, "runs": 3},
            "12.0 GiB, learned from 3 runs, within 8.5 %",
        ),
        ({"bytes": 10 * GIB, "source": "typed", "error_percent": None, "runs": 0}, "10.0 GiB, typed"),
        ({"bytes": None, "source": "whole device", "error_percent": None, "runs": 0}, "the whole device"),
    ],
)
def test_the_claim_is_shown_with_its_source_and_error(claim, said, reader, ada, make_job):
    job = make_job(memory_claim=claim)

    html = html_of(reader(ada).get(reverse("job", args=[job.pk])))

    assert f"<dt>Memory claim</dt><dd>{said}</dd>" in html


def test_a_job_that_leaves_its_devices_unused_is_told_so_with_what_comes_next(reader, ada, make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    Pool.objects.update(idle_stop_after_s=7200)
    page = reverse("job", args=[attempt.job_id])
    assert "has not used them" not in html_of(reader(ada).get(page))

    Job.objects.update(idle_since=timezone.now() - timedelta(hours=1))

    html = html_of(reader(ada).get(page))
    assert "Holds its devices and has not used them since" in html
    assert "After 2 h of that it is stopped." in html
