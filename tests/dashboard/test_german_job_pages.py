"""The pages of jobs, queue and submission for a reader of German."""

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from django.utils import timezone, translation

from dashboard.templatetags.berth import exit_word
from orchestrator.models import Attempt, AttemptState, ExitKind, Job, JobState
from tests.dashboard.markup import html_of


@pytest.fixture
def german(reader, ada) -> Client:
    client: Client = reader(ada)
    client.cookies["berth_language"] = "de"
    return client


@pytest.mark.parametrize(
    ("page", "heading", "some"),
    [
        ("overview", "Übersicht", "Job abschicken"),
        ("queue", "Warteschlange", "Es wartet kein Job"),
        ("jobs", "Jobs", "jeder Zustand"),
        ("compare", "Vergleichen", "Noch nichts zu vergleichen"),
        ("submit", "Abschicken", "Speicher auf jedem Gerät, um es zu teilen. Leer: das ganze Gerät."),
        ("keys", "Tasten", "alles suchen oder ausführen"),
        ("notices", "Nachrichten", "Keine Nachrichten"),
    ],
)
def test_a_page_speaks_german_with_who_reads_it(german, make_device, page, heading, some):
    make_device(0)

    html = html_of(german.get(reverse(page)))

    assert f"<h1>{heading}</h1>" in html
    assert some in html
    assert "Zum Inhalt springen" in html
    assert '<html lang="de"' in html


def test_a_job_page_says_its_places_and_what_can_be_done_in_german(german, ada, make_job):
    job = make_job(owner=ada, state=JobState.QUEUED)

    html = html_of(german.get(reverse("job", args=[job.pk])))

    for said in (
        "Kurven",
        "Verlauf",
        "Anhalten",
        "Kopieren und ändern",
        "Warum er wartet",
        "Noch nicht gestartet.",
    ):
        assert said in html


def test_what_was_done_to_a_job_is_told_in_german(german, ada, make_job):
    job = make_job(owner=ada, state=JobState.QUEUED)

    answer = german.post(reverse("job-act", args=[job.pk, "hold"]), HTTP_X_REQUESTED_WITH="fetch")

    assert answer.json()["detail"] == "Angehalten; er startet nach dem Freigeben."


@pytest.mark.parametrize(("count", "said"), [(1, "1 Job abgebrochen."), (2, "2 Jobs abgebrochen.")])
def test_many_jobs_are_counted_in_german(german, ada, make_job, count, said):
    jobs = [make_job(owner=ada, state=JobState.QUEUED) for _ in range(count)]

    answer = german.post(
        reverse("jobs-bulk"),
        {"job": [str(job.pk) for job in jobs], "action": "cancel"},
        HTTP_X_REQUESTED_WITH="fetch",
    )

    assert answer.json()["detail"] == said


def test_the_style_sheet_finds_a_cell_in_every_language(german, reader, ada, make_job):
    make_job(owner=ada)

    for client in (german, reader(ada)):
        html = html_of(client.get(reverse("jobs")))
        assert ' of-state" data-label="' in html
        assert ' of-devices" data-label="' in html


def test_the_devices_of_a_job_are_named_in_german_on_its_report_and_on_its_charts(german, make_attempt, home):
    job = make_attempt(state=JobState.RUNNING).job

    report = html_of(german.get(reverse("job-report", args=[job.pk])))
    charts = german.get(reverse("job-devices", args=[job.pk])).json()

    assert "simulierte GPU 0" in report
    assert "simulated GPU" not in report
    assert [device["label"] for device in charts["devices"]] == ["simulierte GPU 0"]


@pytest.mark.parametrize("kind", ExitKind)
def test_how_an_attempt_ended_has_words_in_both_languages(kind):
    english = exit_word(kind)
    with translation.override("de"):
        german = exit_word(kind)

    assert "_" not in english
    assert german != english or kind == ExitKind.OK


def test_the_history_and_the_report_of_a_job_say_how_an_attempt_ended(german, reader, ada, make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    Attempt.objects.filter(pk=attempt.pk).update(
        state=AttemptState.ENDED, kind=ExitKind.OOM_GPU, ended_at=timezone.now()
    )
    Job.objects.filter(pk=attempt.job_id).update(state=JobState.FAILED)

    for name in ("job-place-history", "job-report"):
        page = reverse(name, args=[attempt.job_id])
        english, translated = html_of(reader(ada).get(page)), html_of(german.get(page))
        assert "out of GPU memory" in english
        assert "GPU-Speicher voll" in translated
        assert "oom_gpu" not in english + translated


def test_a_warning_about_a_script_is_said_in_german(german, make_device):
    make_device(0)
    broken = SimpleUploadedFile("train.py", b"def (:\n")

    page = german.post(reverse("submit"), {"file": broken, "gpus": "1", "pool": "default"}, follow=True)

    assert "train.py&#x27; sieht nicht nach lauffähigem Python aus" in html_of(page)


def test_progress_in_percent_is_said_once(german, reader, ada, make_attempt):
    job = make_attempt(owner=ada, state=JobState.RUNNING).job
    Job.objects.filter(pk=job.pk).update(step=10, total_steps=100, step_unit="percent", steps_per_s=0.5)

    for client in (german, reader(ada)):
        head = html_of(client.get(reverse("job", args=[job.pk]))).partition("data-progress>")[2]

        assert head.startswith("<b>10 %</b></span>")
        assert "percents" not in head.partition("</p>")[0]
