"""Jobs that differ in their arguments, looked at as a grid."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from orchestrator.models import Attempt, JobArray, JobState
from tests.dashboard.markup import html_of


@pytest.fixture
def runs(make_job, ada):
    """Twelve jobs of one tag over two arguments, the loss lowest at lr 0.01; and a job of another tag."""
    jobs = []
    for width in (16, 32, 64):
        for place, lr in enumerate((1e-4, 1e-3, 0.01, 0.1)):
            jobs.append(
                make_job(
                    owner=ada,
                    name=f"w{width} lr{lr}",
                    tags=["loop"],
                    state=JobState.SUCCEEDED,
                    arguments={"lr": lr, "width": width, "epochs": 3, "opt": "sgd" if place % 2 else "adam"},
                    last_values={"val/loss": 1.0 + abs(place - 2) + 1 / width, "acc": 0.5},
                    step=100,
                    attained_gpu_s=3600.0,
                )
            )
    make_job(owner=ada, tags=["other"], arguments={"lr": 9.0}, last_values={"val/loss": 0.0})
    return jobs


def test_grid_shows_the_arguments_that_differ_and_the_best_job(reader, ada, runs):
    answer = reader(ada).get(reverse("job-grid"), {"tag": "loop"})

    page = html_of(answer)
    assert answer.context["grid"].names == ["lr", "width", "opt"]
    assert answer.context["best"].settings == {"lr": 0.01, "width": 64, "opt": "adam"}
    assert page.count("data-trial=") == 12
    assert answer.context["importance"][0][0] == "lr"
    assert "epochs" not in [name for name, _ in answer.context["best_settings"]]


def test_a_running_job_of_a_grid_shows_how_long_it_has_run(reader, ada, make_attempt, make_job):
    begun_at = timezone.now() - timedelta(minutes=30)
    for lr in (0.1, 0.2):
        job = make_job(owner=ada, tags=["loop"], arguments={"lr": lr})
        attempt = make_attempt(job, state=JobState.RUNNING)
        Attempt.objects.filter(pk=attempt.pk).update(started_at=begun_at)

    answer = reader(ada).get(reverse("job-grid"), {"tag": "loop"})

    assert [row.device_s for row in answer.context["grid"].rows] == pytest.approx([1800.0] * 2, abs=60)


def test_picture_of_a_grid_has_axes_from_the_values_of_the_jobs(reader, ada, runs):
    browser = reader(ada)
    address = reverse("job-grid-picture")

    picture = browser.get(address, {"tag": "loop"}).json()

    assert picture["settings"] == [
        {"name": "lr", "type": "float", "low": 1e-4, "high": 0.1, "log": True},
        {"name": "width", "type": "int", "low": 16, "high": 64},
        {"name": "opt", "type": "categorical", "choices": ["adam", "sgd"]},
    ]
    assert picture["minimize"]
    assert picture["best"][-1] == [12.0, pytest.approx(1 + 1 / 64)]
    assert browser.get(address, {"tag": "loop", "seen": picture["version"]}).status_code == 204
    assert browser.get(reverse("job-grid-curves"), {"tag": "loop"}).json() == {}


def test_metric_and_direction_can_be_chosen(reader, ada, runs):
    answer = reader(ada).get(
        reverse("job-grid"), {"tag": "loop", "metric": "val/loss", "direction": "maximize", "sort": "set.lr"}
    )

    assert answer.context["best"].settings["lr"] == 1e-4
    assert [each["row"].settings["lr"] for each in answer.context["rows"]][::6] == [1e-4, 0.01]
    by_name = reader(ada).get(reverse("job-grid"), {"tag": "loop", "metric": "acc"})
    assert not by_name.context["grid"].minimize


def test_members_of_an_array_are_compared_by_their_index(reader, ada, make_job, db):
    from django.utils import timezone

    array = JobArray.objects.create(count=3, created_at=timezone.now())
    for index in range(3):
        make_job(owner=ada, array=array, array_index=index, last_values={"loss": float(index)})

    answer = reader(ada).get(reverse("job-grid"), {"array": str(array.pk)})

    assert answer.context["grid"].names == ["array index"]
    assert answer.context["best"].settings == {"array index": 0}


@pytest.mark.parametrize(
    ("query", "words"),
    [({"tag": "nothing"}, "No job matches"), ({"q": "only"}, "have the same arguments")],
    ids=["none", "one"],
)
def test_grid_without_anything_to_compare_says_so(reader, ada, make_job, query, words):
    make_job(owner=ada, name="only", arguments={"lr": 1})

    page = html_of(reader(ada).get(reverse("job-grid"), query))

    assert words in page
    assert (
        "js/sweep.js" not in page
    )  # it waits for the first trial, and loads the page again once there are some


@pytest.mark.parametrize("name", ["job-grid", "job-grid-picture", "job-grid-curves"])
def test_other_people_see_nothing_of_the_jobs_in_a_grid(reader, bob, runs, name):
    answer = reader(bob).get(reverse(name), {"tag": "loop"})

    assert answer.status_code == 200
    assert str(runs[0].pk) not in answer.content.decode()


def test_filtered_jobs_can_be_looked_at_as_a_grid(reader, ada, runs):
    assert "/jobs/grid?tag=loop" in html_of(reader(ada).get(reverse("jobs"), {"tag": "loop"}))
    assert "/jobs/grid" not in html_of(reader(ada).get(reverse("jobs")))
