"""Which packages a server that joined is asked to build."""

import errno
import threading
from collections.abc import Sequence
from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.links.gang import Gangs
from orchestrator.links.node_link import NodeLink
from orchestrator.links.packages import to_build, wanted_on
from orchestrator.models import Device, Environment, EnvironmentState, Job
from orchestrator.nodes.packages import Stock, Wanted
from orchestrator.nodes.port import LocalPort

pytestmark = pytest.mark.django_db


@pytest.fixture
def environment(make_job, make_device):
    """Makes an environment with a job that has waited for so many seconds."""

    def make(key: str, waited_s: float = 60, **fields: object) -> Environment:
        row = Environment.objects.create(
            **{
                "key": key,
                "lock": f"{key}==1\n",
                "request": {"lines": ["--extra-index-url https://example.org", key]},
                "state": EnvironmentState.READY,
                "created_at": timezone.now(),
                **fields,
            }
        )
        job = make_job()
        queued_at = timezone.now() - timedelta(seconds=waited_s)
        Job.objects.filter(pk=job.pk).update(environment=row, queued_at=queued_at)
        return row

    Device.objects.filter(pk=make_device().pk).update(node="gpu2")
    return make


def test_packages_of_jobs_that_wait_are_wanted_with_their_index(environment):
    environment("einops")

    assert wanted_on("gpu2") == ["einops"]
    assert to_build("einops") == Wanted("einops", "einops==1\n", ("--extra-index-url https://example.org",))
    assert wanted_on("gpu3") == []  # which has no device of the pool
    assert to_build("gone") is None


@pytest.mark.parametrize(
    ("waited_s", "fields"),
    [
        (0, {}),
        (60, {"state": EnvironmentState.BUILDING}),
        (60, {"request": {"lines": [], "interpreter": "/opt/python"}}),
        (60, {"request": {"lines": [], "image": "lab/train"}}),
    ],
    ids=["just submitted", "not built here yet", "on a Python of this server", "an image"],
)
def test_other_packages_are_not_wanted(environment, waited_s, fields):
    environment("einops", waited_s, **fields)

    assert wanted_on("gpu2") == []


class FullDisk(LocalPort):
    """A server whose disk has no room for packages."""

    def look_at_packages(self, keys: Sequence[str]) -> Stock:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_server_without_room_for_packages_keeps_its_lease(home, tmp_path, caplog):
    port = FullDisk("gpu2", tmp_path / "there", "cpu:1")
    link = NodeLink("gpu2", lambda: port, threading.Event(), Gangs())

    link.turn()
    link._furnished_at = link._renewed_at = 0.0
    link.turn()

    assert (tmp_path / "there/lease.json").exists()
    assert caplog.text.count("No space left on device") == 1
    port.close()
