"""The pages of sweeps: what they show, empty and full, who may see them, and the form that begins one."""

from datetime import timedelta

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse
from django.utils import timezone

from benchmarks.played_sweeps import play
from dashboard.parts import rows, sweep_rows
from orchestrator.facts.events import Happened
from orchestrator.facts.record import fact
from orchestrator.jobs import lifecycle
from orchestrator.models import (
    Attempt,
    Checkpoint,
    Dataset,
    DatasetRoot,
    Job,
    JobEvent,
    JobState,
    Person,
    PoolRight,
    Right,
    Role,
    RungReport,
    Sweep,
    SweepTrial,
)
from tests.dashboard.markup import html_of

FORM = {
    "space_name": ["lr", "opt", ""],
    "space_kind": ["log", "choice", "log"],
    "space_values": ["1e-5..1e-1", "adam, sgd", ""],
    "space_when": ["", "", ""],
    "metric": "val/loss",
    "direction": "minimize",
    "trials": "5",
    "max_width": "2",
    "gpus": "1",
}


def script():
    return SimpleUploadedFile("fit.py", b"print('val/loss 1')\n")


@pytest.fixture
def sweep(home, ada) -> Sweep:
    played: Sweep = play(ada, 20)
    return played


def test_without_sweeps_the_list_says_how_to_begin_one(reader, ada):
    page = html_of(reader(ada).get(reverse("sweeps")))

    assert "No sweeps yet" in page
    assert 'href="/sweeps/new"' in page


def test_the_list_shows_the_best_value_and_what_was_spent(reader, ada, sweep):
    page = html_of(reader(ada).get(reverse("sweeps")))

    best = min(row.value for row in sweep_rows.rows_of(sweep) if row.value is not None)
    assert f"{best:.4g}" in page
    assert "20 of 40" in page


def test_trials_that_the_machine_lost_do_not_count_in_the_budget(reader, ada, sweep):
    SweepTrial.objects.filter(sweep=sweep, number__lt=3).update(lost=True)

    for name, arguments in (("sweeps", []), ("sweep", [sweep.pk])):
        assert "17 of 40" in html_of(reader(ada).get(reverse(name, args=arguments)))


def test_the_page_shows_the_winner_and_every_trial(reader, ada, sweep):
    page = html_of(reader(ada).get(reverse("sweep", args=[sweep.pk])))

    best = min((row for row in sweep_rows.rows_of(sweep) if row.value is not None), key=lambda row: row.cost)
    assert f'href="/submit?from={best.trial.job_id}"' in page
    assert page.count("data-trial=") == 20
    assert "the loss is not a number" in page


def test_a_sweep_whose_trials_all_failed_shows_their_error(reader, ada):
    sweep = play(ada, 3, state="failed", all_failed=True, curves=False)

    page = html_of(reader(ada).get(reverse("sweep", args=[sweep.pk])))

    assert "No trial has reported val/loss" in page
    assert "Export the winner" not in page


@pytest.mark.parametrize(("sort", "first"), [("number", 0), ("-number", 19), ("nonsense", None)])
def test_trials_are_ordered_by_a_column(reader, ada, sweep, sort, first):
    answer = reader(ada).get(reverse("sweep", args=[sweep.pk]), {"sort": sort})

    rows = [each["row"] for each in answer.context["rows"]]
    costs = [row.cost for row in rows]
    assert rows[0].trial.number == first if first is not None else costs == sorted(costs)


@pytest.mark.parametrize("name", ["sweep", "sweep-data", "sweep-curves"])
def test_another_person_finds_no_sweep(reader, bob, sweep, name):
    browser = reader(bob)
    address = reverse(name, args=[sweep.pk])

    assert browser.get(address).status_code == 404
    assert "digits sweep" not in html_of(browser.get(reverse("sweeps")))
    PoolRight.objects.create(user=bob, pool=sweep.pool, right=Right.OPERATE)
    assert browser.get(address).status_code == 200


def test_page_says_whose_files_are_kept_and_which_were_removed(reader, ada, sweep):
    trials = list(sweep.trials.select_related("job").order_by("number"))
    for trial in trials[:2]:
        Checkpoint.objects.create(
            job=trial.job, attempt_number=1, name="step-1", step=1, size_bytes=1, created_at=timezone.now()
        )
    lifecycle.remark(trials[5].job, fact(Happened.FILES_REMOVED_AFTER_DAYS, days=30), actor="retention")

    page = html_of(reader(ada).get(reverse("sweep", args=[sweep.pk])))

    assert "Checkpoints of 2 trials are on disk; the files of 1 trial were removed." in page
    assert "the best 3 last" in page


def test_who_may_only_look_gets_no_buttons(reader, ada):
    sweep = play(ada, 2, state="running", curves=False)
    address = reverse("sweep", args=[sweep.pk])
    assert ">Pause<" in html_of(reader(ada).get(address))
    Person.objects.create(user=ada, role=Role.VIEWER)

    page = html_of(reader(ada).get(address))

    assert ">Pause<" not in page
    assert "Change budget" not in page


def test_buttons_pause_resume_extend_and_stop(reader, ada):
    sweep = play(ada, 2, state="running", curves=False)
    browser = reader(ada)

    def press(operation, **fields):
        browser.post(reverse("change"), {"do": f"{operation.format(f'/api/v1/sweeps/{sweep.pk}')}", **fields})
        sweep.refresh_from_db()
        return sweep.state

    assert press("POST {}/pause") == "paused"
    assert press("POST {}/resume") == "running"
    assert (
        press("PATCH {}", **{"trials:number": "77", "device_hours:number": "", "max_width:number": "3"})
        == "running"
    )
    assert (sweep.max_trials, sweep.max_device_s, sweep.max_width) == (77, None, 3)
    assert press("POST {}/stop") == "stopped"


def test_the_script_reads_trials_once_and_curves_of_those_that_moved(reader, ada, sweep):
    browser = reader(ada)
    address = reverse("sweep-data", args=[sweep.pk])

    picture = browser.get(address).json()
    curves = browser.get(reverse("sweep-curves", args=[sweep.pk]), {"trials": "0,3"}).json()

    assert len(picture["trials"]) == 20
    assert picture["settings"][0] == {"name": "lr", "type": "float", "low": 1e-5, "high": 0.1, "log": True}
    assert picture["best"] == sorted(picture["best"], key=lambda each: -each[1])
    assert curves.keys() == {"0", "3"}
    assert browser.get(address, {"seen": picture["version"]}).status_code == 204
    trial = SweepTrial.objects.filter(sweep=sweep)[0]
    trial.job.metric_seq += 1
    trial.job.save()
    assert browser.get(address, {"seen": picture["version"]}).status_code == 200


def test_the_form_begins_a_sweep(reader, ada, make_device):
    make_device(0)

    answer = reader(ada).post(reverse("sweep-new"), {**FORM, "file": script()})

    sweep = Sweep.objects.get()
    assert answer["Location"] == f"/sweeps/{sweep.pk}"
    assert sweep.space["lr"] == {"type": "float", "low": 1e-5, "high": 0.1, "log": True}
    assert sweep.space["opt"]["choices"] == ["adam", "sgd"]
    assert (sweep.owner, sweep.name, sweep.max_trials, sweep.max_width) == (ada, "fit sweep", 5, 2)


def test_the_form_takes_several_metrics_a_rule_for_the_gain_and_an_earlier_sweep(reader, ada, make_device):
    make_device(0)
    client = reader(ada)
    goal = {"further": "params minimize\n", "warm_start": "auto"}
    client.post(reverse("sweep-new"), {**FORM, **goal, "file": script()})
    rule = {"least_gain": "0.01", "gain_hours": "2"}
    client.post(reverse("sweep-new"), {**FORM, **rule, "file": script()})

    second, first = Sweep.objects.all()
    assert first.further == [{"name": "params", "direction": "minimize"}]
    assert (second.least_gain, second.gain_device_s) == (0.01, 7200)


def test_the_page_of_several_metrics_shows_the_front(reader, ada, sweep):
    Sweep.objects.update(further=[{"name": "params", "direction": "minimize"}])
    reports = RungReport.objects.filter(trial__sweep=sweep, value__isnull=False).order_by("rung")
    for report in reports:
        RungReport.objects.filter(pk=report.pk).update(further=[1000 - report.trial.number])
    sweep.refresh_from_db()

    page = html_of(reader(ada).get(reverse("sweep", args=[sweep.pk]) + "?sort=further.0"))
    picture = reader(ada).get(reverse("sweep-data", args=[sweep.pk])).json()

    front = [row.trial.number for row in sweep_rows.front_of(sweep, sweep_rows.rows_of(sweep))]
    assert len(front) >= 2
    assert page.count('class="is-best"') == len(front)
    assert 'id="fronts"' in page
    assert picture["front"] == front
    assert picture["further"] == [{"name": "params", "minimize": True}]


def test_the_form_takes_yaml(reader, ada, make_device):
    make_device(0)
    form = {
        **FORM,
        "space_name": "",
        "space_values": "",
        "yaml": "lr: {type: float, low: 1e-5, high: 0.1}\n",
    }

    reader(ada).post(reverse("sweep-new"), {**form, "file": script()})

    assert Sweep.objects.get().space.keys() == {"lr"}


@pytest.mark.parametrize(
    ("changes", "control", "part"),
    [
        ({"space_values": ["1e-1..1e-5", "a, b", ""]}, "space_error_1", "is empty; low has to be below high"),
        ({"space_values": ["much", "a, b", ""]}, "space_error_1", "is no range of numbers"),
        ({"yaml": "lr: {type: floaty}", "space_name": ["", "", ""], "space_values": ["", "", ""]}, "yaml-error", "there is no type"),
        ({"yaml": "lr: ["}, "yaml-error", "This is not YAML in line 1"),
        ({"yaml": "lr: &a [*a]"}, "yaml-error", "This is not YAML"),
        ({"yaml": "lr: !!int x"}, "yaml-error", "This is not YAML"),
        ({"max_width": "0"}, "max_width-error", "greater than or equal to 1"),
        ({"metric": ""}, "metric-error", "Name the metric"),
        ({"direction": ""}, "direction-error", "give minimize or maximize"),
        ({"further": "params"}, "further-error", "Give a metric in each line"),
        ({"further": "val/loss minimize"}, "further-error", "is there twice"),
        ({"least_gain": "0.1"}, "least_gain-error", "Give both numbers"),
        ({"warm_start": "ffffffff"}, "warm_start-error", "there is no sweep"),
        ({"trials": ""}, "trials-error", "Give a number of trials"),
        ({"trials": "0"}, "trials-error", "greater than or equal to 1"),
        ({"trials": "many"}, "trials-error", "is not a whole number"),
        ({"gpus": "5"}, "gpus-error", "device"),
    ],
)  # fmt: skip
def test_a_wrong_form_has_its_error_beside_the_control(reader, ada, make_device, changes, control, part):
    make_device(0)

    answer = reader(ada).post(reverse("sweep-new"), {**FORM, **changes, "file": script()})

    page = html_of(answer)
    assert answer.status_code in {400, 422}
    assert part in page.split(f'id="{control}"')[1].split("</p>")[0]
    assert not Sweep.objects.exists()


def test_without_a_script_the_form_asks_for_one_and_keeps_the_rest(reader, ada, make_device):
    make_device(0)

    page = html_of(reader(ada).post(reverse("sweep-new"), FORM))

    assert "Choose a script" in page
    assert 'value="1e-5..1e-1"' in page


def test_form_starts_with_a_ready_space(reader, ada):
    answer = reader(ada).get("/sweeps/new?ready=lr-batch").content.decode()

    assert 'value="1e-5..1e-1*batch-size/32"' in answer
    assert 'value="16,32,64,128,256"' in answer


def test_the_form_starts_from_a_job(reader, ada, make_job):
    job = make_job(spec={"args": ["--epochs", "3"], "name": "digits"})

    page = html_of(reader(ada).get(reverse("sweep-new"), {"from": job.pk}))

    assert 'value="digits sweep"' in page
    assert "--epochs 3" in page


@pytest.fixture
def words(ada, tmp_path) -> Dataset:
    """A dataset that is registered for everybody."""
    (tmp_path / "words").mkdir()
    root = DatasetRoot.objects.create(name="data", path=str(tmp_path))
    made: Dataset = Dataset.objects.create(name="words", version="1", root=root, path="words", owner=ada)
    return made


def test_the_form_keeps_the_data_of_the_job_that_it_is_begun_from(reader, ada, make_job, words):
    address = "hf://datasets/lab/digits"
    job = make_job(spec={"datasets": ["words@1", address]})

    page = html_of(reader(ada).get(reverse("sweep-new"), {"from": job.pk}))

    assert "<option selected>words@1</option>" in page
    assert f"{address}</textarea>" in page


def test_trials_read_the_data_that_was_chosen_in_the_form(reader, ada, make_device, words):
    make_device(0)
    data = {"datasets": ["words@1"], "addresses": "hf://datasets/lab/digits"}

    refused = reader(ada).post(reverse("sweep-new"), {**FORM, **data, "trials": "no", "file": script()})
    reader(ada).post(
        reverse("sweep-new"), {**FORM, **data, "args": "--data {dataset:words}", "file": script()}
    )

    assert "<option selected>words@1</option>" in html_of(refused)
    assert Sweep.objects.get().job_fields["datasets"] == ["words@1", "hf://datasets/lab/digits"]


def test_the_word_of_a_dataset_that_is_not_there_is_refused_beside_the_arguments(
    reader, ada, make_device, words
):
    make_device(0)
    form = {**FORM, "datasets": ["words@1"], "args": "--data {dataset:digits}", "file": script()}

    answer = reader(ada).post(reverse("sweep-new"), form)

    assert answer.status_code == 422
    beside = html_of(answer).split('id="args"')[1].split("</p>")[0]
    assert "There is no dataset" in beside
    assert "register it first" in beside
    assert not Sweep.objects.exists()


def test_an_argument_may_name_data_that_was_not_chosen(reader, ada, make_device, words):
    make_device(0)
    form = {**FORM, "args": "--data {dataset:words}", "file": script()}

    reader(ada).post(reverse("sweep-new"), form)

    assert Sweep.objects.get().job_fields["args"] == ["--data", "{dataset:words}"]


def test_a_running_trial_shows_how_long_it_has_run(reader, ada, make_attempt):
    sweep = play(ada, 4, state="running", curves=False)
    trial = sweep.trials.filter(state="running").select_related("job").first()
    Job.objects.filter(pk=trial.job_id).update(state="queued", attained_gpu_s=0)
    trial.job.refresh_from_db()
    attempt = make_attempt(trial.job, state=JobState.RUNNING)
    Attempt.objects.filter(pk=attempt.pk).update(started_at=timezone.now() - timedelta(minutes=5))
    browser = reader(ada)

    rows = browser.get(reverse("sweep", args=[sweep.pk]), {"sort": "-time"}).context["rows"]
    listed = browser.get(reverse("sweeps")).context["rows"]

    assert rows[0]["row"].trial.pk == trial.pk
    assert rows[0]["row"].device_s == pytest.approx(300, abs=60)
    assert sum(each["row"].device_s for each in rows) == pytest.approx(listed[0]["used_s"], abs=5)


def test_messages_tell_of_the_sweep_and_not_of_its_trials(reader, ada):
    sweep = play(ada, 3, curves=False)
    for trial in sweep.trials.all():
        JobEvent.objects.create(
            job=trial.job, number=2, at=timezone.now(), from_state="running", to_state="failed", actor="agent"
        )

    page = html_of(reader(ada).get(reverse("notices")))

    assert page.count("digits sweep") == 1
    assert f"/sweeps/{sweep.pk}" in page


def test_the_live_rows_mark_trials_so_that_no_page_pops_up_for_each(ada, make_job):
    sweep = play(ada, 4, state="running", curves=False)
    plain = make_job()

    marks = {entry.own["job"]: entry.own["trial"] for entry in rows.read_board(timezone.now())}

    assert marks[str(plain.pk)] is False
    running = sweep.trials.filter(state="running")
    assert [marks[str(trial.job_id)] for trial in running] == [True] * running.count() != []
