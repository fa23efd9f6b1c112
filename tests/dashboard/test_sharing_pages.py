"""Pages of projects and links: what members see, what a link shows to a stranger, and the report as one file."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from orchestrator.api.http import rate
from orchestrator.facts.endings import Ended
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import (
    Attempt,
    ExitKind,
    Job,
    JobState,
    LinkKind,
    MemberRole,
    Note,
    Project,
    ShareLink,
    Visibility,
)
from orchestrator.people import secrets
from orchestrator.sharing import links, notes, projects
from orchestrator.store.metrics.writer import MetricWriter, Point
from tests.dashboard.markup import html_of

QUIET = "the only place of this text"
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def paper(ada, bob) -> Project:
    made = projects.create(ada, "paper-x", "About digits")
    projects.set_member(ada, made, "bob", MemberRole.MEMBER)
    return made


@pytest.fixture
def job(home, ada, paper, make_job, make_attempt, store_script) -> Job:
    """A job with curves, a log and code; variables, arguments and code have texts that a link must not tell."""
    bundle = store_script(f"print('code: {QUIET}')".encode())
    spec = {"args": [QUIET], "env": {"KEY": f"env {QUIET}"}}
    row = make_job(ada, project=paper, visibility="project", bundle=bundle, spec=spec, name=HOSTILE)
    attempt = make_attempt(row, state=JobState.RUNNING)
    log = home.job(row.pk).attempt(attempt.number).log(0)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"step 1 {HOSTILE}\n")
    writer = MetricWriter(home.job(row.pk).metrics, 1, 1000.0, None)
    writer.append([Point("loss", step, 1000.0 + step, 5.0 / (step + 1)) for step in range(50)])
    seq = writer.flush()["seq"]
    writer.close()
    Job.objects.filter(pk=row.pk).update(metric_seq=seq, last_values={"loss": 0.1})
    return Job.objects.get(pk=row.pk)


def link_to(ada: User, job: Job, *shows: str) -> str:
    text = links.make(ada, kind=LinkKind.JOB, jobs=[job], shows=shows or links.USUAL_SECTIONS)[1]
    return reverse("shared", args=[text])


def test_a_link_shows_charts_and_log_to_a_stranger_and_nothing_else(job, ada):
    notes.write(ada, job, f"note {QUIET}")

    answer = Client().get(link_to(ada, job))

    text = html_of(answer)
    assert answer.status_code == 200
    assert "<svg" in text
    assert "End of the log" in text
    assert QUIET not in text
    assert HOSTILE not in text
    for outside in ("<form", "<button", "csrf", "http://", "https://", str(job.pk)):
        assert outside not in text, outside
    assert answer["Referrer-Policy"] == "no-referrer"
    assert "noindex" in answer["X-Robots-Tag"]
    assert answer["Cache-Control"] == "no-store"
    assert "default-src 'none'" in answer["Content-Security-Policy"]


def test_a_link_and_a_report_hide_secrets_that_the_log_shows_its_owner(ada, home, make_job, make_attempt):
    secrets.keep(ada, "API_KEY", QUIET)
    row = make_job(ada, spec={"secrets": ["API_KEY"]})
    log = home.job(row.pk).attempt(make_attempt(row, state=JobState.RUNNING).number).log(0)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(f"key: {QUIET}\n")
    owner = Client()
    owner.force_login(ada)

    for client, address in ((Client(), link_to(ada, row)), (owner, reverse("job-report", args=[row.pk]))):
        text = html_of(client.get(address))

        assert "key: ***" in text
        assert QUIET not in text
    assert QUIET in html_of(owner.get(reverse("job", args=[row.pk])))


def test_a_link_hides_secrets_in_a_failure_that_was_stored_as_printed(ada, home, make_job, make_attempt):
    secrets.keep(ada, "API_KEY", QUIET)
    row = make_job(ada, spec={"secrets": ["API_KEY"]})
    attempt = make_attempt(row, state=JobState.RUNNING)
    how = fact(Ended.EXITED, rank=0, exit_code=3)
    lifecycle.end(attempt, Ending(kind=ExitKind.USER_ERROR, how=how, at=timezone.now()))
    Attempt.objects.filter(pk=attempt.pk).update(log_tail=f"key {QUIET}\n")

    text = html_of(Client().get(link_to(ada, row)))

    assert "key ***" in text
    assert QUIET not in text


@pytest.mark.parametrize(
    ("section", "sign"),
    [("arguments", "Command"), ("code", "code: "), ("notes", "note "), ("history", "Attempts")],
)
def test_a_link_shows_what_was_chosen_and_never_a_variable(section, sign, job, ada):
    notes.write(ada, job, f"note {QUIET}")

    text = html_of(Client().get(link_to(ada, job, section)))

    assert sign in text
    assert f"env {QUIET}" not in text
    assert ("<svg" in text, "End of the log" in text) == (False, False)


def test_a_link_that_is_over_says_so_and_shows_nothing(job, ada):
    address = link_to(ada, job)
    ShareLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))

    for gone in (address, reverse("shared", args=["x"]), reverse("shared-job", args=["x", job.pk])):
        answer = Client().get(gone)
        assert answer.status_code == 404
        assert "This link is over" in html_of(answer)
        assert "<svg" not in html_of(answer)


def test_a_link_to_one_job_opens_no_other(job, ada, make_job):
    other = make_job(ada)
    address = link_to(ada, job)

    assert Client().get(f"{address}/jobs/{other.pk}").status_code == 404
    assert Client().get(f"{address}/jobs/{job.pk}").status_code == 200


def test_a_link_is_read_only_and_slow_for_an_address_that_asks_too_often(job, ada, monkeypatch):
    address = link_to(ada, job)
    assert Client().post(address).status_code == 405
    monkeypatch.setattr(rate, "shared_pages", rate.Rate(a_second=0.0001, burst=1))

    assert [Client().get(address).status_code for _ in range(2)] == [200, 429]


def test_links_to_a_project_and_a_comparison_list_their_jobs_with_pages_of_their_own(
    job, ada, make_job, paper
):
    private = make_job(ada, project=paper, visibility="private", name="quiet-one")
    of_project = links.make(ada, kind=LinkKind.PROJECT, project=paper)[1]
    compared = links.make(ada, kind=LinkKind.COMPARE, jobs=[job, private])[1]

    text = html_of(Client().get(reverse("shared", args=[of_project])))
    assert "About digits" in text
    assert "quiet-one" not in text
    assert reverse("shared-job", args=[of_project, job.pk]) in text
    assert "<svg" in text
    assert Client().get(reverse("shared-job", args=[of_project, private.pk])).status_code == 404
    assert "quiet-one" in html_of(Client().get(reverse("shared", args=[compared])))


def test_a_report_of_several_jobs_is_one_file_that_asks_for_nothing(job, reader, ada, make_job):
    other = make_job(ada, name="second")

    answer = reader(ada).get(reverse("report-of"), {"jobs": f"{job.pk},{other.pk}", "download": "1"})

    text = html_of(answer)
    assert answer["Content-Disposition"] == 'attachment; filename="berth-report.html"'
    assert "second" in text
    for outside in ("<script", "<link", "<img", "src=", "href=", "http://", "https://"):
        assert outside not in text, outside


def test_a_shared_page_that_still_runs_renews_itself_and_a_saved_one_does_not(job, ada):
    address = link_to(ada, job)

    assert "js/shared.js" in html_of(Client().get(address))
    assert "<script" not in html_of(Client().get(address, {"download": "1"}))
    Job.objects.update(state=JobState.SUCCEEDED)
    assert "<script" not in html_of(Client().get(address))


def test_members_open_a_project_with_its_jobs_notes_and_members(job, reader, bob, paper):
    notes.write(bob, paper, "# Seeds\n\n**1 to 5**")

    text = html_of(reader(bob).get(reverse("project", args=["paper-x"])))

    assert reverse("job", args=[job.pk]) in text
    assert "<strong>1 to 5</strong>" in text
    assert "Leave" in text
    assert "members/ada" not in text
    assert "paper-x" in html_of(reader(bob).get(reverse("projects")))
    assert HOSTILE not in text


def test_strangers_find_no_project(reader, job, db):
    cem = User.objects.create_user("cem")

    assert reader(cem).get(reverse("project", args=["paper-x"])).status_code == 404
    assert "/projects/paper-x" not in html_of(reader(cem).get(reverse("projects")))
    for named in ({"project": "paper-x"}, {"jobs": str(job.pk)}):
        assert reader(cem).get(reverse("report-of"), named).status_code == 404
        answer = reader(cem).get(reverse("share"), named)
        assert answer.status_code == 404
        assert QUIET not in html_of(answer)


def test_a_member_sees_the_jobs_page_without_actions_and_makes_no_link(job, reader, bob):
    page = html_of(reader(bob).get(reverse("job", args=[job.pk])))
    shared = html_of(reader(bob).get(reverse("share"), {"jobs": str(job.pk)}))

    assert ">Cancel" not in page
    assert f"env {QUIET}" not in page
    assert "Make the link" not in shared
    answer = reader(bob).post(
        reverse("share"), {"jobs": str(job.pk), "show": "log", "expires_in_s:number": "60"}
    )
    assert answer.status_code == 403
    assert not ShareLink.objects.exists()


def test_the_owner_makes_a_link_and_changes_who_sees_the_job(job, reader, ada):
    browser = reader(ada)
    given = {"jobs": str(job.pk), "show": ["charts", "notes"], "expires_in_s:number": "86400", "note": "Ana"}

    answer = browser.post(reverse("share"), given)

    assert answer["Cache-Control"] == "no-store"
    assert "/shared/" in html_of(answer)
    link = ShareLink.objects.get()
    assert (link.shows, link.note) == (["charts", "notes"], "Ana")
    assert "/shared/" not in html_of(browser.get(reverse("share"), {"jobs": str(job.pk)}))
    to_file = browser.post(reverse("share"), {"jobs": str(job.pk), "show": "code", "download": "1"})
    assert to_file["Location"] == f"/share/report?jobs={job.pk}&show=code&download=1"
    operation = {"do": f"PATCH /api/v1/jobs/{job.pk}", "project:optional": "", "visibility": "lab"}
    browser.post(reverse("change"), operation)
    job.refresh_from_db()
    assert (job.project_id, job.visibility) == (None, Visibility.LAB)


def test_a_note_about_a_step_is_on_the_page_and_a_mark_of_its_charts(job, reader, bob):
    browser = reader(bob)

    operation = {"do": f"POST /api/v1/jobs/{job.pk}/notes", "text": "too **hot**", "step:number": "20"}
    browser.post(reverse("change"), operation)

    page = html_of(browser.get(reverse("job", args=[job.pk])))
    assert Note.objects.get().step == 20
    assert "too <strong>hot</strong>" in page
    assert '"notes": [{"step": 20, "note": "bob: too **hot**"}]' in page
    assert 'class="mark"' in html_of(
        browser.get(reverse("report-of"), {"jobs": job.pk, "show": ["charts", "notes"]})
    )


def test_jobs_can_be_filtered_by_project(job, reader, bob, make_job):
    make_job(bob, name="elsewhere")

    text = html_of(reader(bob).get(reverse("jobs"), {"project": "paper-x"}))

    assert str(job.pk) in text
    assert "elsewhere" not in text
