"""``/metrics``: who may read it, and what Prometheus finds."""

import json
import re
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.api.resources import prometheus
from orchestrator.people import tokens

DEPLOY = Path(settings.BASE_DIR) / "deploy"


@pytest.fixture
def read_as(home):
    def read(user=None, scope="read"):
        headers = {"Authorization": f"Token {tokens.issue(user, name='p', scope=scope)[1]}"} if user else {}
        return Client(headers=headers).get("/metrics")

    return read


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_only_admins_may_read_the_metrics(read_as, ada, root):
    assert [read_as(user).status_code for user in (None, ada, root)] == [401, 403, 200]


def test_jobs_devices_and_waits_are_counted(read_as, root, make_job, make_attempt):
    make_job()
    make_attempt()

    found = samples(read_as(root).text)

    assert found["berth_jobs", (("state", "starting"),)] == 1
    assert found["berth_jobs", (("state", "failed"),)] == 0
    assert found["berth_queue_length", (("pool", "default"),)] == 1
    assert found["berth_device_leased", (("device", "sim-0"),)] == 1
    assert found["berth_errands_open", ()] == 1


def test_b42_labels_cannot_be_injected(read_as, root, make_device, make_pool):
    make_device(pool=make_pool(), id='x"} 1\nberth_jobs{state="failed')

    found = samples(read_as(root).text)

    assert found["berth_jobs", (("state", "failed"),)] == 0


@pytest.mark.parametrize("name", ["alerts.yml", "grafana.json"])
def test_board_and_alerts_ask_for_metrics_that_exist(read_as, root, make_attempt, name):
    make_attempt()
    known = set(re.findall(r"^# TYPE (\w+)", read_as(root).text, re.MULTILINE))
    known |= {each[0] for each in prometheus.READINGS}
    text = (DEPLOY / name).read_text()
    if name.endswith(".json"):
        text = "\n".join(
            target["expr"] for panel in json.loads(text)["panels"] for target in panel.get("targets", [])
        )

    asked = set(re.findall(r"\bberth_\w+", text))

    assert asked
    assert asked <= known
