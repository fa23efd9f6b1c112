"""The replay tells the scheduler no more than a server could, and its schedules satisfy the independent checker."""

import csv
import json
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from benchmarks import scheduling
from benchmarks.resampling import resample
from benchmarks.simulator.schedule import oracle_jct_s, score
from benchmarks.traces import read_pool, read_trace
from orchestrator.scheduler.core import Policy
from orchestrator.scheduler.simulator.replay import Knowledge, replay

COLUMNS = [
    "job_id",
    "arrival_s",
    "gpus",
    "gpu_milli",
    "mem_gib",
    "duration_s",
    "limit_s",
    "user",
    "group",
    "priority",
]


@pytest.fixture
def pool(tmp_path):
    path = tmp_path / "pool.json"
    nodes = [{"name": f"n{index}", "gpus": 4, "gpu_mem_gib": 80} for index in range(2)]
    path.write_text(json.dumps({"nodes": nodes}))
    return path


@pytest.fixture
def trace(tmp_path):
    """Sixty jobs, some of a part of a GPU, one of both nodes."""
    dice = Random(4)  # noqa: S311 - a workload, not a secret
    path = tmp_path / "trace.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for number in range(60):
            gpus = 8 if number == 30 else dice.choice((1, 1, 1, 2, 4))
            milli = dice.choice((1000, 500, 250)) if gpus == 1 else 1000
            length_s = round(dice.uniform(30, 20_000))
            writer.writerow(
                [number, number * 200, gpus, milli, "", length_s, 2 * length_s, f"u{number % 3}", "g", 0]
            )
    return path


@pytest.mark.parametrize("progress", ["all", "half", "none"])
@pytest.mark.parametrize("limits", ["given", "equal", "shuffled"])
def test_the_checker_accepts_every_schedule(trace, pool, tmp_path, progress, limits, capsys):
    schedule = tmp_path / "schedule.csv"
    given = [
        "--progress",
        progress,
        "--limits",
        limits,
        "--schedule-out",
        str(schedule),
        "--eta-sigma",
        "0.5",
    ]

    status = scheduling.main(["--trace", str(trace), "--pool", str(pool), *given])

    assert status == 0
    assert json.loads(capsys.readouterr().out)["jct_x_lb"] >= 1
    assert score(trace, pool, schedule, 60.0)["feasible"]


def test_the_plain_policy_is_replayed_too(trace, pool):
    jobs = [job for job in read_trace(trace) if job.gpus <= 4]  # it does not span nodes

    outcome = replay(jobs, read_pool(pool), Policy(), Knowledge())

    assert outcome.restarts == 0
    assert len(outcome.segments) == len(jobs)


def test_a_longer_life_changes_nothing_before_the_shorter_one_would_have_ended(trace, pool):
    """What a job that reports nothing will take cannot be known: only its end tells."""
    devices, jobs = read_pool(pool), read_trace(trace)
    policy = replace(Policy.progress_aware(), span_nodes=True)
    longer = [replace(job, duration_s=job.duration_s * 3) if job.id == "5" else job for job in jobs]
    unknown = Knowledge(progress="none")

    short = replay(jobs, devices, policy, unknown).segments
    long = replay(longer, devices, policy, unknown).segments

    ended = max(segment.end_s for segment in short if segment.job_id == "5")
    begun = [
        sorted((each.start_s, each.job_id, each.device_ids) for each in segments if each.start_s < ended)
        for segments in (short, long)
    ]
    assert len(begun[0]) > 5
    assert begun[0] == begun[1]


def test_a_report_is_seen_after_two_minutes_and_not_before(trace, pool):
    devices, jobs = read_pool(pool), read_trace(trace)
    policy = replace(Policy.progress_aware(), span_nodes=True, trial_s=0.0)
    unknown = replay(jobs, devices, policy, Knowledge(progress="none")).segments
    known = replay(jobs, devices, policy, Knowledge(progress="all")).segments

    assert sorted(known, key=str) != sorted(unknown, key=str)


def test_a_job_that_no_pool_could_hold_is_named(trace, tmp_path, capsys):
    small = tmp_path / "small.json"
    small.write_text(json.dumps({"nodes": [{"name": "n0", "gpus": 4, "gpu_mem_gib": 80}]}))

    status = scheduling.main(["--trace", str(trace), "--pool", str(small)])

    assert status == 1
    assert "1 jobs never fit this pool: ['30']" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "trace.csv has no column job_id; its first line names the columns."),
        ("job_id,arrival_s,gpus,duration_s\n", "trace.csv has no jobs."),
        (
            "job_id,arrival_s,gpus,duration_s\n1,0,-3,5\n",
            "trace.csv, line 2: gpus is '-3'; give a number from 1 on.",
        ),
        (
            "job_id,arrival_s,gpus,duration_s\n1,0,1.5,5\n",
            "trace.csv, line 2: gpus is '1.5'; give a whole number.",
        ),
        (
            "job_id,arrival_s,gpus,duration_s\n1,nan,1,5\n",
            "trace.csv, line 2: arrival_s is 'nan'; give a number from 0 on.",
        ),
        ("job_id,arrival_s,gpus,duration_s\n1,0,1,5\n1,0,1,5\n", "trace.csv has two jobs of one job_id."),
        ("job_id,arrival_s,gpus,duration_s\n1,0,64,5\n", "1 jobs never fit this pool: ['1']."),
    ],
)
def test_a_wrong_trace_is_refused_with_the_place(text, said, pool, tmp_path, capsys):
    path = tmp_path / "trace.csv"
    path.write_text(text)

    assert scheduling.main(["--trace", str(path), "--pool", str(pool)]) == 1
    assert capsys.readouterr().err == f"The replay failed: {said}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "pool.json is no JSON"),
        ("[]", "pool.json describes no pool; give"),
        ('{"nodes": [{"name": "a"}]}', "pool.json describes no pool; give"),
        ('{"nodes": []}', "pool.json has no GPU."),
    ],
)
def test_a_wrong_pool_is_refused_with_a_sentence(text, said, trace, pool, capsys):
    pool.write_text(text)

    assert scheduling.main(["--trace", str(trace), "--pool", str(pool)]) == 1
    assert said in capsys.readouterr().err


def test_resampled_trace_keeps_the_load_and_the_kinds_of_jobs(trace, tmp_path):
    first, again, other = (tmp_path / name for name in ("first.csv", "again.csv", "other.csv"))
    resample(trace, first, 1, 40)
    resample(trace, again, 1, 40)
    resample(trace, other, 2, 40)

    assert first.read_text() == again.read_text()
    assert first.read_text() != other.read_text()
    jobs, source = read_trace(first), read_trace(trace)
    assert len(jobs) == 40
    assert {(job.gpus, job.gpu_milli) for job in jobs} <= {(job.gpus, job.gpu_milli) for job in source}
    assert [job.arrival_s for job in jobs] == sorted(job.arrival_s for job in jobs)
    assert 0.7 < _load(jobs) / _load(source) < 1.3


def test_elastic_jobs_do_all_their_work_on_devices_that_nobody_else_has(trace, pool):
    jobs, devices = read_trace(trace), read_pool(pool)
    knowledge = Knowledge(elastic=True)
    policy = replace(Policy.progress_aware(), span_nodes=True)

    outcome = replay(jobs, devices, policy, knowledge)

    whole = {job.id: job for job in jobs if job.gpu_milli >= 1000}
    held = [
        (id_, segment.start_s, segment.end_s)
        for segment in outcome.segments
        if segment.job_id in whole
        for id_ in segment.device_ids
    ]
    for (one, _, ended), (other, began, _) in pairwise(sorted(held)):
        assert one != other or ended <= began + 1e-3
    for id_, job in whole.items():
        mine = [segment for segment in outcome.segments if segment.job_id == id_]
        device_s = sum((one.end_s - one.start_s) * len(one.device_ids) for one in mine)
        assert device_s >= job.duration_s  # more devices never make the work less
    assert {len(one.device_ids) for one in outcome.segments} > {1, 2, 4}
    assert scheduling.mean_jct_s(jobs, outcome.segments) < scheduling.mean_jct_s(
        jobs, replay(jobs, devices, policy, Knowledge()).segments
    )


def _load(jobs):
    work = sum(job.duration_s * job.gpus * job.gpu_milli for job in jobs)
    return work / (jobs[-1].arrival_s - jobs[0].arrival_s)


def test_oracles_are_scored_by_the_independent_checker(trace, pool):
    jobs = read_trace(trace)

    for rule in scheduling.ORACLES:
        assert oracle_jct_s(trace, pool, rule) >= sum(job.duration_s for job in jobs) / len(jobs)
