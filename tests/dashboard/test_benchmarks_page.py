"""The Benchmarks page: runs the grid as a job, and shows what it wrote as checked text."""

import json
import re

import pytest

from orchestrator.models import Job, JobState
from tests.dashboard.markup import html_of

HOSTILE = "<script>alert(1)</script>"
FORM = {"strategies": ["ddp", "fsdp"], "gpus": "1 2", "batch_sizes": "64, 128", "steps": "12"}


def cell(strategy: str, gpus: int, step_s: float | None, **fields):
    about = {"strategy": strategy, "gpus": gpus, "batch_size": 64}
    return {
        "cell": about, "samples_per_step": 64 * gpus, "step_s": [step_s] * 4 if step_s else [], "peak_bytes": 1 << 27,
        "communication": None, "not_measured": "", **fields,
    }  # fmt: skip


RESULT = {
    "v": 1,
    "about": "here",
    "took_s": 12.5,
    "advice": ["Take ddp on 2 GPUs.", HOSTILE],
    "cells": [
        cell("ddp", 1, 0.1),
        cell("ddp", 2, 0.125),
        cell("dp", 2, None, not_measured=f"no GPU {HOSTILE}"),
    ],
}


@pytest.fixture
def write_result(home):
    def write(job: Job, result: object) -> None:
        folder = home.job(job.id).output
        folder.mkdir(parents=True)
        (folder / "grid.json").write_text(result if isinstance(result, str) else json.dumps(result))

    return write


@pytest.fixture
def grid_job(make_job, ada):
    def make(**fields):
        return make_job(fields.pop("owner", ada), name="strategies: ddp", tags=["strategy-grid"], **fields)

    return make


def test_who_is_not_signed_in_is_asked_to(db, client, home):
    assert client.get("/benchmarks").status_code == 302
    assert client.post("/benchmarks", FORM).status_code == 302


def test_running_it_is_a_job_like_any_other(reader, ada, make_device):
    make_device(0)
    make_device(1)

    answer = reader(ada).post("/benchmarks", FORM)

    job = Job.objects.get()
    assert answer["Location"] == f"/benchmarks?job={job.pk}"
    assert (job.gpus, job.tags, job.owner) == (2, ["strategy-grid"], ada)
    assert job.spec_fields["args"] == [
        "--strategies", "ddp", "fsdp", "--gpus", "1", "2", "--batch-sizes", "64", "128", "--steps", "12",
    ]  # fmt: skip
    assert "Measuring" in html_of(reader(ada).get(answer["Location"]))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"strategies": []}, "Choose at least one strategy."),
        ({"strategies": ["rm -rf"]}, "Choose at least one strategy."),
        ({"gpus": "two"}, "whole numbers"),
        ({"gpus": "0"}, "between 1 and 64"),
        ({"batch_sizes": "-1"}, "whole numbers"),
        ({"batch_sizes": "9" * 19}, "between 1 and"),
        ({"steps": ""}, "whole numbers"),
        ({"gpus": "1 2 3 4 5 6", "batch_sizes": "1 2 3 4 5 6"}, "more than 64 cells"),
        ({"pool": "nowhere"}, "nowhere"),
    ],
)
def test_a_wrong_field_is_told_and_nothing_starts(change, expected, reader, ada, make_device):
    make_device(0)
    make_device(1)

    answer = reader(ada).post("/benchmarks", {**FORM, **change})

    assert answer.status_code == 400
    assert expected in html_of(answer)
    assert not Job.objects.exists()


def test_results_are_shown_with_advice_and_reasons_as_text(reader, ada, grid_job, write_result):
    job = grid_job(state=JobState.SUCCEEDED)
    write_result(job, RESULT)

    html = html_of(reader(ada).get("/benchmarks"))

    assert "Take ddp on 2 GPUs." in html
    assert ">1,024</td>" in html
    assert ">80 %</td>" in html
    assert "Not measured here: <bdi>dp x2 with batch size 64</bdi>. <bdi>no GPU &lt;script&gt;" in html
    assert "Exchange" not in html
    assert HOSTILE not in html


def test_cells_left_out_for_one_reason_are_told_together(reader, ada, grid_job, write_result):
    job = grid_job(state=JobState.SUCCEEDED)
    why = "single uses one device."
    left_out = [cell("single", 2, None, not_measured=why) for _ in range(2)]
    left_out[1]["cell"]["batch_size"] = 128
    write_result(job, {**RESULT, "cells": [cell("ddp", 2, 0.1, communication=0.25), *left_out]})

    html = html_of(reader(ada).get("/benchmarks"))

    assert html.count(why) == 1
    assert f"<bdi>single x2 with batch size 64, 128</bdi>. <bdi>{why}</bdi>" in html
    assert ">25 %</td>" in html


def test_the_form_repeats_the_run_that_is_shown_and_says_how_far_it_is(reader, ada, grid_job):
    args = ["--strategies", "tensor", "<b>", "--gpus", "4", "--batch-sizes", "32", "x", "--steps", "7"]
    job = grid_job(state=JobState.RUNNING)
    fields = {**job.spec_fields, "args": args}
    Job.objects.filter(pk=job.pk).update(step=3, total_steps=8, spec_fields=fields)

    html = html_of(reader(ada).get(f"/benchmarks?job={job.pk}"))

    assert "3 of 8 cells are done." in html
    assert re.findall(r'value="(\w+)" checked', html) == ["tensor"]
    for name, text in (("gpus", "4"), ("batch_sizes", "32"), ("steps", "7")):
        assert f'name="{name}" value="{text}"' in html


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"cells": 3}', json.dumps({**RESULT, "took_s": -1}), "\x00", "9" * 5_000_000],
)
def test_what_a_job_wrote_instead_of_a_result_is_no_error(text, reader, ada, grid_job, write_result):
    job = grid_job(state=JobState.FAILED)
    write_result(job, text)

    answer = reader(ada).get(f"/benchmarks?job={job.pk}")

    assert answer.status_code == 200
    assert "No results" in html_of(answer)


def test_a_link_in_place_of_the_result_is_not_followed(reader, ada, grid_job, home, tmp_path):
    job = grid_job(state=JobState.FAILED)
    folder = home.job(job.id).output
    folder.mkdir(parents=True)
    (tmp_path / "elsewhere").write_text(json.dumps(RESULT))
    (folder / "grid.json").symlink_to(tmp_path / "elsewhere")

    assert "No results" in html_of(reader(ada).get("/benchmarks"))


def test_b63_anothers_run_is_not_there(reader, bob, grid_job, write_result):
    job = grid_job(state=JobState.SUCCEEDED)
    write_result(job, RESULT)

    assert reader(bob).get(f"/benchmarks?job={job.pk}").status_code == 404
    assert "Take ddp" not in html_of(reader(bob).get("/benchmarks"))


@pytest.mark.parametrize("job", ["", "x", "00000000-0000-0000-0000-000000000000"])
def test_a_job_that_is_not_there_is_404(job, reader, ada):
    assert reader(ada).get(f"/benchmarks?job={job}").status_code == (404 if job else 200)
