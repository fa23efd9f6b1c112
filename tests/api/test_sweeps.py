"""Sweeps over REST: begin, look, change, stop, and who may."""

import pytest

from berth.client.studies import study_of
from orchestrator.models import AuditEntry, PoolRight, Right, RungReport, Sweep, SweepTrial
from orchestrator.sweeps import controller

BODY = {
    "job": {"source": {"text": "print(1)\n"}, "total_steps": 18},
    "set": ["lr=log:1e-5..1e-1", "opt=adam,sgd"],
    "metric": "val/loss",
    "direction": "minimize",
    "budget": {"trials": 5},
}


@pytest.fixture
def sweep(client_of, ada, make_device) -> Sweep:
    """A sweep of ada's with one trial that reported twice."""
    make_device(0)
    answer = client_of(ada).send("POST", "/sweeps", BODY)
    assert answer.status_code == 201
    sweep = Sweep.objects.get(pk=answer.json()["id"])
    controller.advance(sweep.pk)
    for rung, value in ((1, 0.5), (3, 0.75)):
        RungReport.objects.create(trial=sweep.trials.get(), rung=rung, value=value)
    return sweep


def test_a_sweep_is_answered_with_its_space_and_its_best_trial(client_of, ada, sweep):
    answer = client_of(ada).send("GET", f"/sweeps/{sweep.short_id}").json()

    assert answer["space"]["lr"] == {"type": "float", "low": 1e-5, "high": 0.1, "log": True}
    assert answer["rungs"] == [1, 3, 9, 18]
    assert (answer["trials"], answer["lost_trials"]) == ({"running": 1}, 0)
    assert (answer["best"]["value"], answer["best"]["rung"]) == (0.5, 1)
    assert answer["best"]["settings"].keys() == {"lr", "opt"}


def test_trials_that_a_fault_of_the_machine_took_are_counted_apart(client_of, ada, sweep):
    sweep.trials.update(state="stopped", lost=True)

    answer = client_of(ada).send("GET", f"/sweeps/{sweep.short_id}").json()

    assert (answer["trials"], answer["lost_trials"]) == ({"stopped": 1}, 1)


def test_trials_are_listed_with_every_setting(client_of, ada, sweep):
    client = client_of(ada)

    (trial,) = client.send("GET", f"/sweeps/{sweep.pk}/trials").json()["results"]
    table = client.send("GET", f"/sweeps/{sweep.pk}/trials?format=csv")

    assert trial["reports"] == [{"rung": 1, "value": 0.5}, {"rung": 3, "value": 0.75}]
    assert table["Content-Type"].startswith("text/csv")
    header, row = table.content.decode().splitlines()
    assert header == "number,state,job,value,rung,device_hours,error,lr,opt"
    assert row.split(",")[7:] == [str(trial["settings"]["lr"]), trial["settings"]["opt"]]


def test_a_sweep_begins_with_an_uploaded_script(client_of, ada, make_device):
    from django.core.files.uploadedfile import SimpleUploadedFile

    make_device(0)
    client = client_of(ada)
    form = {
        "sweep": SimpleUploadedFile("sweep.json", b'{"job": {}, "set": ["a=1,2"], "metric": "m", '
        b'"direction": "maximize", "budget": {"device_hours": 2}}', "application/json"),
        "script": SimpleUploadedFile("fit.py", b"print(1)\n"),
    }  # fmt: skip

    answer = client.post("/api/v1/sweeps", form)

    assert answer.status_code == 201
    assert (answer.json()["name"], answer.json()["device_hours"]) == ("fit sweep", 2.0)


def test_a_script_that_ignores_its_settings_is_pointed_out(client_of, ada, sweep, make_job):
    client = client_of(ada)
    for number in range(1, 4):
        job = make_job(ada)
        trial = SweepTrial.objects.create(
            sweep=sweep,
            number=number,
            settings={"lr": number},
            job=job,
            state="running",
            created_at=job.submitted_at,
        )
        RungReport.objects.create(trial=trial, rung=1, value=0.5)

    equal = client.send("GET", f"/sweeps/{sweep.pk}").json()["warnings"]
    RungReport.objects.filter(trial=trial).update(value=0.4)
    different = client.send("GET", f"/sweeps/{sweep.pk}").json()["warnings"]

    assert "Does the script read its settings?" in equal[0]
    assert different == []


def test_budget_and_width_change_while_it_runs(client_of, ada, sweep):
    client = client_of(ada)

    answer = client.send("PATCH", f"/sweeps/{sweep.pk}", {"trials": 9, "max_width": 7}).json()
    wrong = client.send("PATCH", f"/sweeps/{sweep.pk}", {"metric": "x"})
    empty = client.send("PATCH", f"/sweeps/{sweep.pk}", {})
    narrow = client.send("PATCH", f"/sweeps/{sweep.pk}", {"min_width": 8})

    assert (answer["max_trials"], answer["max_width"]) == (9, 7)
    assert [each.status_code for each in (wrong, empty, narrow)] == [400, 400, 400]


def test_another_person_sees_nothing_of_a_sweep(client_of, bob, sweep):
    client = client_of(bob)

    assert client.send("GET", "/sweeps").json()["results"] == []
    for method, path in (
        ("GET", ""),
        ("GET", "/trials"),
        ("PATCH", ""),
        ("POST", "/stop"),
        ("POST", "/pause"),
        ("POST", "/resume"),
    ):
        assert client.send(method, f"/sweeps/{sweep.pk}{path}", {"trials": 1}).status_code == 404
    sweep.refresh_from_db()
    assert (sweep.state, sweep.max_trials) == ("running", 5)


def test_an_operator_of_the_pool_stops_a_sweep_and_that_is_audited(client_of, bob, sweep):
    PoolRight.objects.create(user=bob, pool=sweep.pool, right=Right.OPERATE)

    answer = client_of(bob).send("POST", f"/sweeps/{sweep.pk}/stop").json()

    assert (answer["state"], answer["reason"]) == ("stopped", "Stopped by bob.")
    assert SweepTrial.objects.get().job.state == "cancelled"
    assert AuditEntry.objects.get(action="sweep.stop").actor == "bob"


def test_a_wrong_sweep_says_what_to_give(client_of, ada, make_device):
    make_device(0)
    client = client_of(ada)

    missing = client.send("POST", "/sweeps", {name: BODY[name] for name in BODY if name != "direction"})
    huge = client.send(
        "POST", "/sweeps", {**BODY, "sampler": "grid", "set": [f"a{n}=1,2,3,4,5,6,7,8,9,0" for n in range(6)]}
    )

    assert missing.json()["errors"]["direction"] == ["give minimize or maximize"]
    assert huge.status_code == 422
    assert "1,000,000 points" in huge.json()["detail"]


def test_a_repeated_request_with_its_key_begins_one_sweep(client_of, ada, make_device):
    make_device(0)
    client = client_of(ada)
    key = {"Idempotency-Key": "one"}

    first, again = (client.send("POST", "/sweeps", BODY, **key) for _ in range(2))
    other = client.send("POST", "/sweeps", {**BODY, "metric": "acc"}, **key)

    assert first.json() == again.json()
    assert Sweep.objects.count() == 1
    assert other.status_code == 422
    assert "another body" in other.json()["detail"]


def test_pausing_and_resuming_twice_is_harmless_and_not_for_ended_sweeps(client_of, ada, sweep):
    client = client_of(ada)

    def act(action: str) -> tuple[int, str]:
        answer = client.send("POST", f"/sweeps/{sweep.pk}/{action}")
        return answer.status_code, answer.json().get("state") or answer.json()["detail"]

    assert [act("pause"), act("pause")] == [(200, "paused")] * 2
    assert [act("resume"), act("resume")] == [(200, "running")] * 2
    assert act("stop") == (200, "stopped")
    assert [act("pause")[0], act("resume")[0]] == [409, 409]


def test_a_sweep_of_several_metrics_is_answered_with_its_front_and_becomes_a_study(
    client_of, ada, make_device
):
    make_device(0)
    client = client_of(ada)
    metrics = [
        {"name": "val/loss", "direction": "minimize"},
        {"name": "speed", "direction": "maximize"},
    ]
    body = {name: value for name, value in BODY.items() if name not in {"metric", "direction"}}
    begun = client.send(
        "POST", "/sweeps", {**body, "metrics": metrics, "max_width": 4, "min_width": 4}
    ).json()
    sweep = Sweep.objects.get(pk=begun["id"])
    controller.advance(sweep.pk)
    for trial, (loss, speed) in zip(sweep.trials.all(), [(0.5, 9.0), (0.7, 9.5), (0.9, 1.0)], strict=False):
        RungReport.objects.create(trial=trial, rung=18, value=loss, further=[speed])
        SweepTrial.objects.filter(pk=trial.pk).update(state="ended")

    answer = client.send("GET", f"/sweeps/{sweep.pk}").json()
    trials = client.send("GET", f"/sweeps/{sweep.pk}/trials").json()["results"]
    header = client.send("GET", f"/sweeps/{sweep.pk}/trials?format=csv").content.decode().splitlines()[0]
    study = study_of(answer, trials)

    assert "each one trains to its end" in begun["warnings"][0]
    assert answer["metrics"] == metrics
    assert [trial["number"] for trial in answer["front"]] == [0, 1]
    assert trials[1]["values"] == {"val/loss": 0.7, "speed": 9.5}
    assert header == "number,state,job,value,rung,device_hours,error,speed,lr,opt"
    assert [trial.user_attrs["berth_trial"] for trial in study.best_trials] == [0, 1]
    assert study.best_trials[0].params == trials[0]["settings"]


def test_the_rule_for_the_gain_is_answered_and_changed(client_of, ada, make_device):
    make_device(0)
    client = client_of(ada)
    rule = {"device_hours": 10.0, "gain": 0.001}

    begun = client.send("POST", "/sweeps", {**BODY, "stop_when": rule}).json()
    without = client.send("PATCH", f"/sweeps/{begun['id']}", {"stop_when": None}).json()

    assert begun["stop_when"] == rule
    assert without["stop_when"] is None


@pytest.mark.parametrize(
    ("fields", "field", "part"),
    [
        ({"metrics": [{"name": "a", "direction": "minimize"}]}, "metrics", "not both"),
        ({"metric": None, "direction": None}, "metric", "name the metric"),
        (
            {
                "metric": None,
                "direction": None,
                "sampler": "cmaes",
                "metrics": [{"name": name, "direction": "minimize"} for name in "ab"],
            },
            "sampler",
            "one metric only",
        ),
        (
            {
                "metric": None,
                "direction": None,
                "metrics": [{"name": "a", "direction": "minimize"}] * 2,
            },
            "metrics",
            "twice",
        ),
        ({"stop_when": {"device_hours": 10, "gain": 0}}, "stop_when.gain", "greater than 0"),
    ],
)
def test_metrics_that_exclude_each_other_are_refused_with_their_field(
    client_of, ada, make_device, fields, field, part
):
    make_device(0)

    answer = client_of(ada).send("POST", "/sweeps", {**BODY, **fields})

    assert answer.status_code == 400
    assert part in answer.json()["errors"][field][0]
