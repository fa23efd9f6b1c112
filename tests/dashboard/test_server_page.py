"""The page of the server and its REST: the state of each part, and what to do."""

import json
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.live import readings
from orchestrator.models import Errand, Outbox, Person, Role
from orchestrator.nodes.reports import write_report
from orchestrator.server import backup
from orchestrator.store.backup_record import last_backup
from tests.dashboard.markup import html_of
from tests.nodes.test_reports import NODE, gpu, read

pytestmark = pytest.mark.django_db


def parts(client) -> dict[str, dict[str, object]]:
    answer = client.get("/api/v1/health/parts")
    assert answer.status_code == 200
    return {part["name"]: part for part in answer.json()["parts"]}


def test_each_part_of_a_new_server_says_how_it_is_and_what_to_do(reader, root):
    found = parts(reader(root))

    assert list(found) == [
        "web", "agent", "worker", "redis", "database", "disk", "backup", "sandbox", "queue"
    ]  # fmt: skip
    assert found["agent"]["state"] == "failing"
    assert "systemctl restart berth-agent" in str(found["agent"]["remedy"])
    assert (found["backup"]["state"], found["backup"]["detail"]) == ("warning", "none was written yet")
    assert (found["database"]["state"], found["web"]["state"]) == ("ok", "ok")
    page = html_of(reader(root).get("/server"))
    assert "need you" in page
    assert "manage.py backup" in page


def test_what_works_needs_nothing_and_what_broke_says_what(reader, root, home, make_job):
    readings.write_now(replace(readings.NOTHING_READ, seq=1, taken_at=time.time(), stream="s"))
    client = reader(root)
    found = parts(client)
    assert (found["agent"]["state"], found["agent"]["remedy"]) == ("ok", "")
    assert found["worker"]["value"] == 0

    Outbox.objects.create(
        errand=Errand.SCHEDULE, job=make_job(), created_at=timezone.now() - timedelta(minutes=1)
    )

    late = parts(client)["worker"]
    assert (late["state"], late["value"]) == ("failing", 1)
    assert "berth-worker" in str(late["remedy"])


def test_other_servers_are_parts_and_a_silent_one_says_what_to_do(reader, root, home):
    write_report(home.nodes, NODE, read(gpu(0), gpu(1)))
    client = reader(root)

    answering = parts(client)["node gpu2"]

    assert (answering["state"], answering["remedy"]) == ("ok", "")
    assert str(answering["detail"]).startswith("2 devices, 0 jobs, CPU 10 %")
    report = json.loads((home.nodes / "gpu2.json").read_text())
    (home.nodes / "gpu2.json").write_text(json.dumps({**report, "at": time.time() - 60}))
    silent = parts(client)["node gpu2"]
    assert silent["state"] == "failing"
    assert "node leave gpu2" in str(silent["remedy"])
    assert "another server, which lends its devices" in html_of(client.get("/server"))


@pytest.mark.django_db(transaction=True)
def test_a_backup_is_known_by_its_age_and_an_old_one_is_told(reader, root, home, tmp_path):
    backup.write(tmp_path / "away" / "berth.tar", database_only=True)
    client = reader(root)
    fresh = parts(client)["backup"]
    assert (fresh["state"], fresh["remedy"]) == ("ok", "")
    record = last_backup(home)
    assert record is not None
    assert record.target.endswith("berth.tar")

    noted = home.root / "last_backup.json"
    noted.write_text(json.dumps({**json.loads(noted.read_text()), "at": time.time() - 7 * 24 * 3600}))

    old = parts(client)["backup"]
    assert old["state"] == "warning"
    assert "manage.py snapshot" in str(old["remedy"])


def test_a_note_that_cannot_be_read_counts_as_no_backup(home):
    (home.root / "last_backup.json").write_text("{")

    assert last_backup(home) is None


def test_the_page_is_for_operators_of_every_pool(reader, ada, bob):
    Person.objects.create(user=bob, role=Role.OPERATOR)

    assert reader(ada).get("/server").status_code == 403
    assert reader(ada).get("/api/v1/health/parts").status_code == 403
    assert reader(bob).get("/server").status_code == 200
