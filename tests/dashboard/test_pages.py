"""Every page: who may see it, what it shows of others' jobs, and that what users type is text."""

import os
import re
import threading
from datetime import timedelta
from urllib.parse import urlencode

import orjson
import pytest
from django.urls import reverse
from django.utils import timezone

from orchestrator.agent.readings import ReadingsThread
from orchestrator.devices import open_devices
from orchestrator.facts.record import sentence_only
from orchestrator.jobs import lifecycle
from orchestrator.jobs.lifecycle import Ending
from orchestrator.models import Checkpoint, ExitKind, Job, JobState
from orchestrator.store.checkpoints.capture import Wanted
from orchestrator.store.checkpoints.generations import GenerationStore
from tests.dashboard.markup import html_of

HOSTILE = "<script>alert(1)</script>"
PAGES = ("overview", "queue", "jobs", "submit", "account")


@pytest.mark.parametrize("page", PAGES)
def test_who_is_not_signed_in_is_asked_to(db, client, home, page):
    answer = client.get(reverse(page))

    assert answer.status_code == 302
    assert answer["Location"].startswith(reverse("login"))


def test_a_job_page_asks_to_sign_in_before_it_looks_for_the_job(client, home, make_job):
    job = make_job()

    for address in (
        reverse("job", args=[job.pk]),
        reverse("job-devices", args=[job.pk]),
    ):
        assert client.get(address).status_code == 302
    assert client.post(reverse("job-act", args=[job.pk, "cancel"])).status_code == 302


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_one_heading_a_title_and_no_inline_script(reader, ada, make_device, write_readings, page):
    make_device(0)
    write_readings("sim-0")

    html = html_of(reader(ada).get(reverse(page)))

    assert len(re.findall(r"<h1[ >]", html)) == 1
    assert 'class="skip" href="#main"' in html
    assert "Berth</title>" in html
    scripts = re.findall(r"<script\b([^>]*)>([^<]*)", html)
    assert all("src=" in attributes or 'type="application/json"' in attributes for attributes, _ in scripts)
    assert not re.search(r"\son[a-z]+=", html)


@pytest.mark.parametrize("page", PAGES)
def test_every_field_has_a_label(reader, ada, make_device, page):
    make_device(0)

    html = html_of(reader(ada).get(reverse(page)))

    fields = re.findall(r"<(?:input|select|textarea)\b[^>]*>", html)
    named = [field for field in fields if 'type="hidden"' not in field]
    for field in named:
        found = re.search(r'\bid="([^"]+)"', field)
        in_label = re.search(rf"<label[^>]*>\s*{re.escape(field)}", html)
        assert in_label or (found and f'for="{found[1]}"' in html), field


def test_pages_load_from_this_server_only(reader, ada):
    answer = reader(ada).get(reverse("overview"))

    assert "default-src 'self'" in answer["Content-Security-Policy"]
    assert not re.search(r'(?:src|href)="(?:https?:)?//', html_of(answer))


def test_a_foreign_job_is_answered_like_one_that_does_not_exist(reader, bob, make_job):
    job = make_job(name="secret-project")
    browser = reader(bob)

    foreign = browser.get(reverse("job", args=[job.pk]))
    missing = browser.get(reverse("job", args=["01890000-0000-7000-8000-000000000000"]))

    assert foreign.status_code == missing.status_code == 404
    assert b"secret-project" not in foreign.content
    assert browser.post(reverse("job-act", args=[job.pk, "cancel"])).status_code == 404
    assert browser.get(reverse("job-devices", args=[job.pk])).status_code == 404
    job.refresh_from_db()
    assert job.state == JobState.QUEUED


def test_the_short_id_of_ones_job_leads_to_its_page(reader, ada, bob, make_job):
    job = make_job(owner=ada)

    answer = reader(ada).get(f"/jobs/{job.short_id}")

    assert (answer.status_code, answer["Location"]) == (302, f"/jobs/{job.pk}")
    assert reader(bob).get(f"/jobs/{job.short_id}").status_code == 404
    assert reader(ada).get("/jobs/nothing").status_code == 404


def test_staff_may_open_any_job(reader, root, make_job):
    job = make_job(spec={"args": ["--from", "https://store.example/a?key=opensesame"]})

    answer = reader(root).get(reverse("job", args=[job.pk]))

    assert answer.status_code == 200
    assert "opensesame" not in html_of(answer)  # which is a password of the owner's


def test_the_queue_shows_others_jobs_without_link_arguments_or_numbers(reader, bob, make_job):
    job = make_job(
        name="ada-job",
        spec={"args": ["--password", "hunter2"], "env": {"KEY": "sesame"}},
        wait_code="devices",
        wait_facts={"sentence": "Needs 1 GPU, 0 are free."},
        last_values={"loss": 0.12345},
        why=sentence_only("private words").as_json(),
    )

    html = html_of(reader(bob).get(reverse("queue")))

    assert "ada-job" in html
    assert "Needs 1 GPU, 0 are free." in html
    for private in (
        "hunter2",
        "sesame",
        "0.1234",
        "private words",
        str(job.pk),
        reverse("job", args=[job.pk]),
    ):
        assert private not in html


def test_the_wall_links_only_own_jobs(reader, ada, bob, make_attempt, write_readings):
    attempt = make_attempt(state=JobState.RUNNING)
    device = attempt.leases.get().device
    holder = {"job": str(attempt.job_id), "name": "digits", "owner": "ada", "rank": 0, "colour": 0}
    write_readings(device.pk, **{device.pk.replace("-", "_"): {"holders": [holder]}})
    address = reverse("job", args=[attempt.job_id])

    assert address in html_of(reader(ada).get(reverse("overview")))
    seen = html_of(reader(bob).get(reverse("overview")))
    assert address not in seen
    assert "digits" in seen


@pytest.mark.parametrize(("colour", "classes"), [(0, "colour-1"), (7, "colour-8"), (8, "colour-1 again")])
def test_a_job_has_its_colour_on_the_wall_and_on_its_page(
    reader, ada, make_attempt, write_readings, colour, classes
):
    attempt = make_attempt(owner=ada, state=JobState.RUNNING)
    Job.objects.update(colour=colour)
    device = attempt.leases.get().device
    holder = {"job": str(attempt.job_id), "name": "digits", "owner": "ada", "rank": 0, "colour": colour}
    write_readings(device.pk, **{device.pk.replace("-", "_"): {"holders": [holder]}})
    browser = reader(ada)

    for address in (reverse("overview"), reverse("job", args=[attempt.job_id])):
        assert f'class="swatch {classes}"' in html_of(browser.get(address))


def test_the_wall_names_strangers_without_their_command_line(reader, ada, make_device, write_readings):
    make_device(0)
    process = {
        "pid": 7,
        "used_bytes": 9 << 30,
        "user": "carl",
        "command": "/usr/bin/python --key hunter2",
        "job": None,
    }
    write_readings("sim-0", sim_0={"foreign_bytes": 9 << 30, "processes": [process]})

    html = html_of(reader(ada).get(reverse("overview")))

    assert "EXTERNAL" in html
    assert "carl (python, pid " in html
    assert "hunter2" not in html


def test_a_reading_that_does_not_exist_is_left_out(reader, ada, make_device, write_readings):
    make_device(0)
    write_readings("sim-0")

    tile = html_of(reader(ada).get(reverse("overview"))).split('data-device="sim-0"')[1].split("</li>")[0]

    assert "1.0" in tile
    assert not re.search(r"N/A|None|-1\b|°C|\bW\b|\d %", tile)


def test_stopped_readings_are_named_on_every_page(reader, ada, make_device, write_readings):
    make_device(0)
    write_readings("sim-0", age_s=60)

    for page in PAGES:
        assert "Readings stopped at" in html_of(reader(ada).get(reverse(page)))


def test_an_empty_server_says_what_would_be_there(reader, ada):
    browser = reader(ada)

    assert "No devices yet" in html_of(browser.get(reverse("overview")))
    assert "No jobs yet" in html_of(browser.get(reverse("jobs")))
    assert "No jobs are waiting" in html_of(browser.get(reverse("queue")))


def test_b41_a_hostile_name_is_text_on_every_page(reader, ada, make_attempt, write_readings):
    attempt = make_attempt(state=JobState.RUNNING, name=HOSTILE, tags=[HOSTILE])
    device = attempt.leases.get().device
    holder = {"job": str(attempt.job_id), "name": HOSTILE, "owner": "ada", "rank": 0, "colour": 0}
    write_readings(device.pk, **{device.pk.replace("-", "_"): {"holders": [holder]}})
    browser = reader(ada)

    for address in (*map(reverse, ("overview", "queue", "jobs")), reverse("job", args=[attempt.job_id])):
        html = html_of(browser.get(address))
        assert HOSTILE not in html
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


def test_b54_b55_a_log_is_text_whatever_it_holds(reader, ada, home, make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    path = home.job(attempt.job_id).attempt(1).log(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"<img src=x onerror=alert(1)>\n\x1b]0;title\x07\x1b[31mred\x1b[0m \xff\x00 end\n")

    html = html_of(reader(ada).get(reverse("job", args=[attempt.job_id])))

    assert "&lt;img src=x onerror=alert(1)&gt;" in html
    assert "<img src=x" not in html
    assert "red \ufffd\ufffd end" in html
    assert "\x1b" not in html


def test_b47_a_loss_that_is_no_number_is_said_and_the_page_stays_whole(reader, ada, make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    job = attempt.job
    job.last_values, job.diverged_step = {"loss": "nan"}, 8120
    job.save()

    html = html_of(reader(ada).get(reverse("job", args=[job.pk])))

    assert "stopped being a number at step 8,120" in html
    assert "loss <b>NaN</b>" in html
    data = re.search(r'<script id="job-data" type="application/json">(.*?)</script>', html)
    assert data
    assert orjson.loads(data[1])["row"]["loss"] == "NaN"  # a text: JSON has no number for it


def test_a_failed_job_answers_why(reader, ada, make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    attempt.state, attempt.kind = "ended", "oom_gpu"
    attempt.ending = sentence_only("Ran out of GPU memory on rank 1.").as_json()
    attempt.ended_at, attempt.first_failure, attempt.log_tail = attempt.started_at, {"rank": 1}, "boom <b>\n"
    attempt.save()
    job = attempt.job
    job.state, job.why = JobState.FAILED, sentence_only("Not retried.").as_json()
    job.save()

    html = html_of(reader(ada).get(reverse("job", args=[job.pk])))

    assert "It ran out of GPU memory (rank 1 first)" in html
    assert "Ran out of GPU memory on rank 1." in html
    assert "boom &lt;b&gt;" in html
    assert "Run again" in html


def test_b58_links_in_the_output_folder_are_not_listed(reader, ada, home, make_job):
    job = make_job()
    output = home.job(job.pk).output
    output.mkdir(parents=True)
    (output / "result.txt").write_text("42")
    (output / "passwd").symlink_to("/etc/passwd")

    html = html_of(reader(ada).get(reverse("job", args=[job.pk])))

    assert "result.txt" in html
    assert "passwd" not in html


def test_b55_a_file_name_that_is_no_text_does_not_break_the_page(reader, ada, home, make_attempt):
    attempt = make_attempt(state=JobState.RUNNING)
    for folder in (home.job(attempt.job_id).output, home.job(attempt.job_id).checkpoints):
        folder.mkdir(parents=True)
        (folder / os.fsdecode(b"caf\xe9\n\x1b[31m<img src=x>.txt")).write_text("x")

    answer = reader(ada).get(reverse("job", args=[attempt.job_id]))

    assert answer.status_code == 200
    assert b"&lt;img src=x&gt;" in answer.content
    assert b"<img src=x>" not in answer.content


@pytest.mark.parametrize(
    ("names", "called"),
    [(["step_5000.pt"], "step_5000.pt"), (["checkpoint-8/a.bin", "checkpoint-8/b.bin"], "checkpoint-8/")],
)
def test_a_job_page_names_a_checkpoints_files_and_offers_each(reader, ada, home, make_attempt, names, called):
    job = make_attempt(state=JobState.RUNNING).job
    folder = home.job(job.pk)
    paths = [folder.checkpoints / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    resume = f"checkpoints/{called.rstrip('/')}"
    wanted = Wanted(paths, resume=resume)
    kept = GenerationStore(folder).capture_save(wanted, 1, 5000, lambda: True, settle_s=0).generation
    assert kept is not None
    Checkpoint.objects.create(
        job=job,
        attempt_number=1,
        step=5000,
        name=kept.name,
        source="script",
        size_bytes=9,
        created_at=timezone.now(),
    )

    html = html_of(reader(ada).get(reverse("job", args=[job.pk])))

    assert f"<bdi>{called}</bdi>" in html
    for name in names:
        address = f"/api/v1/jobs/{job.pk}/checkpoints/generation%201/files/checkpoints/{name}"
        assert f'href="{address}"' in html


def test_filters_stand_in_the_address_and_unknown_ones_find_nothing(reader, ada, make_job):
    make_job(name="alpha", tags=["paper"])
    make_job(name="beta", state=JobState.HELD)
    browser = reader(ada)

    def found(query: str) -> list[str]:
        return re.findall(r"<bdi>(alpha|beta)</bdi>", html_of(browser.get(f"{reverse('jobs')}?{query}")))

    assert found("") == ["beta", "alpha"]
    assert found("q=alp") == ["alpha"]
    assert found("state=held") == ["beta"]
    assert found("tag=paper") == ["alpha"]
    assert found("state=bogus") == []
    assert found("owner=nobody") == []


def test_a_long_list_is_read_page_by_page(reader, ada, make_job):
    for number in range(60):
        make_job(name=f"job-{number:02}")
    browser = reader(ada)

    first = html_of(browser.get(reverse("jobs")))
    older = re.search(r'href="(\?before=[^"]+)" rel="next"', first)
    assert older
    second = html_of(browser.get(reverse("jobs") + older[1]))
    newer = re.search(r'href="(\?after=[^"]+)" rel="prev"', second)
    assert newer
    again = html_of(browser.get(reverse("jobs") + newer[1]))

    names = [re.findall(r"<bdi>(job-\d\d)</bdi>", page) for page in (first, second, again)]
    assert names[0] == [f"job-{number:02}" for number in range(59, 9, -1)]
    assert names[1] == [f"job-{number:02}" for number in range(9, -1, -1)]
    assert names[2] == names[0]


def test_b43_a_cursor_that_is_none_starts_at_the_beginning(reader, ada, make_job):
    make_job(name="alpha")

    for query in ("before=-1", "after=x", "before=99999999999999999999"):
        answer = reader(ada).get(f"{reverse('jobs')}?{query}")
        assert answer.status_code == 200
        assert "alpha" in html_of(answer)


@pytest.mark.parametrize(
    "address",
    [
        "//evil.example/",
        "https://evil.example/",
        "https:evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "///evil.example",
        "javascript:alert(1)",
        "http://testserver@evil.example/",
        "\t//evil.example",
    ],
)
def test_b68_a_foreign_address_after_the_login_is_ignored(client, ada, home, address):
    answer = client.post(
        f"{reverse('login')}?{urlencode({'next': address})}",
        {"username": "ada", "password": "ada's password", "next": address},
    )

    assert answer.status_code == 302
    assert answer["Location"] == reverse("overview")


def test_the_admin_is_offered_to_staff_only(reader, ada, root):
    assert reverse("admin:index") not in html_of(reader(ada).get(reverse("overview")))
    assert reverse("admin:index") in html_of(reader(root).get(reverse("overview")))


def test_a_job_page_charts_the_devices_from_what_the_agent_kept(reader, ada, make_attempt, make_device):
    thread = ReadingsThread(open_devices("sim:1x80GiB"), threading.Event())
    attempt = make_attempt(owner=ada, state=JobState.RUNNING, devices=[make_device(0)])
    thread.tick()
    thread.history.flush()

    [device] = reader(ada).get(f"/jobs/{attempt.job_id}/devices").json()["devices"]

    assert len(device["series"]["memory_gib"]["x"]) == 1


def test_the_admin_refuses_who_is_no_operator_without_a_circle(client, home, ada):
    client.force_login(ada)

    answer = client.get("/admin/", follow=True)

    assert answer.status_code == 403
    assert len(answer.redirect_chain) <= 2


def test_compact_rows_are_kept_for_the_browser(home, reader, ada):
    browser = reader(ada)

    browser.post(reverse("theme"), {"theme": "dark", "density": "compact"})

    page = html_of(browser.get(reverse("queue")))
    assert 'data-theme="dark" data-compact' in page
    browser.post(reverse("theme"), {"theme": ""})
    assert "data-compact" not in html_of(browser.get(reverse("queue")))


def test_the_queue_tells_the_median_wait_of_a_day(home, reader, ada, make_job):
    now = timezone.now()
    for wait_min in (1, 7, 60):
        make_job(
            state=JobState.SUCCEEDED,
            submitted_at=now - timedelta(hours=2),
            first_started_at=now - timedelta(hours=2) + timedelta(minutes=wait_min),
        )

    assert "median wait of the last 24 h: 7 min" in html_of(reader(ada).get(reverse("queue")))


def test_a_job_page_tells_what_it_took_of_the_devices(home, reader, ada, make_job):
    job = make_job(
        state=JobState.SUCCEEDED,
        gpus=2,
        seconds_run=7_920.0,
        first_started_at=timezone.now(),
        ended_at=timezone.now(),
    )

    assert "4.4 device-hours" in html_of(reader(ada).get(reverse("job", args=[job.pk])))


def test_devices_are_counted_by_the_attempt_that_had_them(reader, ada, make_attempt, make_device):
    attempt = make_attempt(state=JobState.RUNNING, devices=[make_device(0), make_device(1)], gpus=2)
    ending = Ending(kind=ExitKind.PREEMPTED, how=sentence_only(""), at=timezone.now(), run_s=7_200)
    lifecycle.end(attempt, ending)
    Job.objects.update(gpus=1)  # it goes on with fewer

    shown = html_of(reader(ada).get(reverse("job", args=[attempt.job_id])))

    assert "4.0 device-hours" in shown


def test_the_example_runs_for_whoever_asks(home, reader, root, ada, make_device):
    make_device(0)

    answer = reader(ada).post(reverse("example"))

    job = Job.objects.get()
    assert (job.name, job.owner) == ("digits-example", ada)
    assert answer["Location"] == reverse("job", args=[job.pk])


def test_without_an_admin_the_example_says_what_is_missing(home, reader, ada, make_device):
    make_device(0)

    answer = reader(ada).post(reverse("example"), follow=True)

    assert "There is no admin to submit the example for" in html_of(answer)


def test_a_job_page_has_a_link_to_share(home, reader, ada, make_job):
    address = reverse("job", args=[make_job().pk])

    page = html_of(reader(ada).get(address))

    assert f'id="job-link" aria-hidden="true">http://testserver{address}<' in page


def test_a_job_with_fewer_devices_than_it_asks_for_says_so(reader, ada, make_job):
    job = make_job(spec={"gpus": 3, "min_gpus": 1}, gpus=2)

    page = html_of(reader(ada).get(f"/jobs/{job.pk}"))

    assert "asks for 3, 1 at least" in page
