"""The page of sessions, its REST routes and its command: starting, listing, stopping, opening."""

import dataclasses
import socket
import time
from datetime import datetime

import pytest
from django.utils.html import strip_tags

from berth.shared.command_lines import command_line
from orchestrator.api.resources import server_parts
from orchestrator.exceptions import Malformed, WrongSetting
from orchestrator.jobs.environments import requests
from orchestrator.jobs.submission.intake import parse_spec
from orchestrator.live.readings import NOTHING_READ, write_now
from orchestrator.models import Job, JobState, Pool
from orchestrator.server.doctor.processes import check_sessions_port
from orchestrator.server.environment import SessionsSetting, read_environment
from orchestrator.server.sessions_port import SessionsPort
from orchestrator.sessions.addresses import (
    WrongAddress,
    address_of,
    note_port_problem,
    place_of,
    port_problem,
)
from orchestrator.spec.job_spec import JobSpec

ID = "01890000-0000-7000-8000-000000000001"


@pytest.fixture
def own_origins(home, settings) -> None:
    setting = SessionsSetting(8266, "https://*.sessions.lab.org")
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, sessions=setting)


def test_page_starts_a_notebook_without_code(ada, reader_of, make_device):
    make_device()

    reader_of(ada).post(
        "/change",
        {
            "do": "POST /api/v1/sessions",
            "name:optional": "",
            "pool": "default",
            "gpus:number": "1",
            "gpu_memory_gib:number": "",
            "with_packages:words": "pandas",
            "time_limit_s:number": "28800",
        },
    )

    job = Job.objects.get()
    assert (job.spec.kind, job.spec.program, job.name) == ("session", "jupyter", "jupyter")
    assert (job.spec.with_packages, job.time_limit_s) == (["pandas", "jupyterlab"], 28800)
    assert job.environment is not None


def test_page_lists_own_sessions_and_opens_those_that_listen(ada, bob, reader_of, make_session, make_device):
    make_device(7)
    job, starting, others = make_session(), make_session(listens=False), make_session(bob)

    page = reader_of(ada).get("/sessions").content.decode()

    assert f"/sessions/{job.pk}/open" in page
    assert f"/sessions/{starting.pk}/open" not in page
    assert ">starting<" in page
    assert str(others.pk) not in page


def test_page_says_what_computes_and_when_an_idle_session_is_stopped(
    ada, reader_of, make_session, make_device
):
    make_device(7)
    Pool.objects.update(idle_stop_after_s=3600)
    busy, idle = make_session(), make_session()
    seen_at = time.time() - 1230
    write_now(
        dataclasses.replace(
            NOTHING_READ,
            sessions={
                str(busy.pk): {"sign": "kernel", "seen_at": time.time(), "idle": False},
                str(idle.pk): {"sign": "terminal", "seen_at": seen_at, "idle": True},
            },
        )
    )

    page = " ".join(strip_tags(reader_of(ada).get("/sessions").content.decode()).split())

    assert "A kernel computes" in page
    assert "Idle for 20 min: a program in a terminal ran last." in page
    assert "Gives its devices back in 39 min if it stays idle; variables in memory are then lost." in page
    listed = {row["id"]: row["activity"] for row in reader_of(ada).get("/api/v1/sessions").json()["results"]}
    assert listed[str(busy.pk)]["stops_at"] is None
    assert listed[str(idle.pk)]["sign"] == "terminal"
    assert datetime.fromisoformat(listed[str(idle.pk)]["stops_at"]).timestamp() == pytest.approx(
        seen_at + 3600
    )


def test_page_warns_where_sessions_share_an_address(ada, reader_of, own_origins, settings):
    page = reader_of(ada).get("/sessions").content.decode()
    assert "share one address" not in page

    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, sessions=SessionsSetting(8266))
    assert "share one address" in reader_of(ada).get("/sessions").content.decode()


async def test_a_port_that_is_taken_is_said_where_its_operator_looks(home, settings):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings.ENVIRONMENT = dataclasses.replace(
            settings.ENVIRONMENT, bind="127.0.0.1", home=home, sessions=SessionsSetting(port, "")
        )
        await SessionsPort()._open(settings.ENVIRONMENT)

    problem = port_problem(home.services)
    assert problem.startswith(
        f"Sessions cannot be opened in browsers: port {port} on 127.0.0.1 cannot be used"
    )
    assert [finding.sentence for finding in check_sessions_port()] == [problem]
    web = server_parts._web()
    assert (web.state, web.remedy) == ("warning", problem)

    opened = SessionsPort()
    await opened._open(settings.ENVIRONMENT)
    await opened._close()
    assert port_problem(home.services) == ""


def test_page_says_that_the_port_is_taken(ada, reader_of, home):
    note_port_problem(home.services, "Port 8266 is taken.")

    assert "Port 8266 is taken." in reader_of(ada).get("/sessions").content.decode()


def test_stop_ends_a_session_of_ones_own_and_no_plain_job(ada, bob, reader_of, make_job):
    session = make_job(spec={"kind": "session"})
    plain = make_job()
    stop = {"do": f"POST /api/v1/sessions/{session.pk}/stop"}

    reader_of(bob).post("/change", stop)
    session.refresh_from_db()
    assert session.state == JobState.QUEUED

    reader_of(ada).post("/change", stop)
    reader_of(ada).post("/change", {"do": f"POST /api/v1/sessions/{plain.pk}/stop"})
    session.refresh_from_db()
    plain.refresh_from_db()
    assert (session.state, plain.state) == (JobState.CANCELLED, JobState.QUEUED)


def test_session_that_does_not_run_leads_back_to_the_page_with_why(ada, reader_of, make_job):
    job = make_job(spec={"kind": "session"})

    answer = reader_of(ada).get(f"/sessions/{job.pk}/open", follow=True)

    assert "This session is queued; it opens while it is running." in answer.content.decode()


def test_job_page_opens_a_running_session_for_its_owner(ada, root, reader_of, make_session):
    job = make_session(listens=False)

    assert f"/sessions/{job.pk}/open" in reader_of(ada).get(f"/jobs/{job.pk}").content.decode()
    assert f"/sessions/{job.pk}/open" not in reader_of(root).get(f"/jobs/{job.pk}").content.decode()


def test_command_of_a_session_starts_a_session():
    fields = JobSpec(program="jupyter", gpus=2).model_dump(mode="json")
    defaults = JobSpec().model_dump(mode="json")

    assert command_line(fields, defaults, "code.zip") == "berth session start --program jupyter -g 2 code.zip"


def test_program_makes_a_session_and_a_session_has_a_program():
    assert JobSpec(program="jupyter").kind == "session"
    assert JobSpec(kind="session").program == "jupyter"
    assert JobSpec(kind="session", command=["serve"]).program is None


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"kind": "session", "entrypoint": "train.py"}, "entrypoint"),
        ({"kind": "session", "module": "pkg.train"}, "module"),
        ({"program": "jupyter", "command": ["serve"]}, "program"),
        ({"program": "jupyter", "kind": "model"}, "program"),
        ({"program": "jupyter", "array": "0-3"}, "array"),
        ({"program": "jupyter", "max_gpus": 4}, "max_gpus"),
        ({"program": "emacs"}, "program"),
    ],
)
def test_session_that_cannot_be_is_refused_with_its_field(fields, name):
    with pytest.raises(Malformed) as error:
        parse_spec(fields)

    assert list(error.value.fields) == [name]


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([], ["jupyterlab"]),
        (["pandas"], ["pandas", "jupyterlab"]),
        (["jupyterlab==4.4"], ["jupyterlab==4.4"]),
        (["JupyterLab[extra]>4"], ["JupyterLab[extra]>4"]),
    ],
)
def test_jupyter_comes_by_itself_unless_it_is_named(given, added):
    spec = JobSpec(program="jupyter", with_packages=given)

    wanted = requests.choose(spec, lambda name: None, {}, lambda name: None)

    assert wanted.spec.with_packages == added
    assert wanted.declared is not None


def test_each_session_has_its_own_origin_where_a_wildcard_name_is_set(own_origins):
    assert address_of(ID, "https://berth.lab.org/") == f"https://{ID}.sessions.lab.org/"  # type: ignore[arg-type]
    place = place_of("http", f"{ID}.sessions.lab.org", b"/lab")
    assert (str(place.job_id), place.origin, place.base) == (ID, f"https://{ID}.sessions.lab.org", "/")


@pytest.mark.parametrize(
    "host", ["sessions.lab.org", "x.sessions.lab.org", f"{ID}.evil.org", f"a.{ID}.sessions.lab.org"]
)
def test_other_names_are_no_session(own_origins, host):
    with pytest.raises(WrongAddress):
        place_of("http", host, b"/")


@pytest.mark.parametrize(
    "url", ["sessions.lab.org", "https://a.*.lab.org", "https://lab.org/s", "ftp://*.lab.org"]
)
def test_wrong_address_of_sessions_stops_the_start_with_a_sentence(url):
    with pytest.raises(WrongSetting, match="BERTH_SESSIONS_URL"):
        read_environment({"BERTH_SESSIONS_URL": url})


def test_sessions_have_the_port_beside_berths_unless_set():
    assert read_environment({"BERTH_PORT": "9000"}).sessions.port == 9001
    assert read_environment({"BERTH_SESSIONS_PORT": "0"}).sessions.port == 0
    with pytest.raises(WrongSetting, match="BERTH_SESSIONS_PORT"):
        read_environment({"BERTH_SESSIONS_PORT": "x"})
