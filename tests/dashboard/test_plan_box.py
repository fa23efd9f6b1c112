from orchestrator.jobs import training_plans
from orchestrator.models import Job, JobState
from tests.dashboard.markup import html_of
from tests.jobs.test_training_plans import plan_event


def test_the_page_shows_the_plan_why_and_what_was_considered(reader, ada, make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    attempt.plan = training_plans.read_event(plan_event())
    attempt.save(update_fields=["plan"])
    Job.objects.filter(pk=attempt.job_id).update(steps_per_s=5.0)
    client = reader(ada)

    page = html_of(client.get(f"/jobs/{attempt.job_id}"))

    assert "FSDP, bf16, ckpt on, batch 16x1" in page
    assert "predicted 190 ms/step, now 200 ms" in page
    assert "DDP needs 171 GiB &gt; 141" in page
    assert "needs 171.0 GiB, usable are 129.0 GiB" in page


def test_a_script_has_no_box_for_a_plan(reader, ada, make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    client = reader(ada)

    assert 'id="plan-title"' not in html_of(client.get(f"/jobs/{attempt.job_id}"))
