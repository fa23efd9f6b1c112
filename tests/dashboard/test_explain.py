"""What would change a job's wait, in its row of the Queue."""

from django.urls import reverse

from orchestrator.models import JobState
from orchestrator.scheduler import passes
from tests.dashboard.markup import html_of


def test_a_row_tells_what_would_start_the_job_now_and_who_is_before_it(
    reader, ada, make_job, make_attempt, make_device, write_readings
):
    held, free = make_device(0), make_device(1)
    write_readings(held.pk, free.pk)
    make_attempt(state=JobState.RUNNING, name="holder", devices=[held])
    wide = make_job(spec={"gpus": 2, "name": "wide"})
    assert passes.run_pass() == 0

    page = html_of(reader(ada).get(reverse("queue")))
    piece = html_of(reader(ada).get(reverse("queue-explain", args=[wide.pk])))

    assert reverse("queue-explain", args=[wide.pk]) in page
    assert "It would start <strong>now</strong> with 1 device." in piece
    assert f'href="/submit?from={wide.pk}&amp;gpus=1"' in piece
    assert "<bdi>holder</bdi> of ada" in piece


def test_anothers_wait_is_not_explained(reader, bob, make_job):
    assert reader(bob).get(reverse("queue-explain", args=[make_job().pk])).status_code == 404


def test_a_job_that_waits_for_nothing_small_says_so(reader, ada, make_job, home):
    piece = html_of(reader(ada).get(reverse("queue-explain", args=[make_job().pk])))

    assert "No small change would start it now." in piece
