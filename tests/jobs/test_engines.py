"""What every engine has to do; another one joins the list in ``engine``."""

from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

import pytest

from orchestrator.jobs.launch import launcher
from orchestrator.jobs.launch.engines import Engine, NotStarted, order_of
from orchestrator.jobs.launch.engines.local import LocalEngine
from orchestrator.jobs.launch.engines.port import Order
from orchestrator.models import Attempt, Job
from orchestrator.supervisor.protocol.records import read_record
from tests.waiting import wait_until

SCRIPT = b"import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: exit(0))\nprint('up', flush=True)\ntime.sleep(600)\n"


@pytest.fixture(params=[LocalEngine])
def engine(request) -> Engine:
    made: Engine = request.param()
    return made


@pytest.fixture
def prepared(make_attempt, make_job, store_script) -> Callable[..., Attempt]:
    """An attempt with its folder and launch record, and no supervisor."""

    def make(script: bytes = SCRIPT) -> Attempt:
        attempt: Attempt = make_attempt(make_job(bundle=store_script(script)))
        launcher.prepare(Job.objects.select_related("pool").get(pk=attempt.job_id), attempt)
        return attempt

    return make


def start(engine: Engine, attempt: Attempt) -> None:
    with suppress(NotStarted):  # the machine is busy; it still comes
        engine.start(order_of(attempt), {})
    wait_until(launcher.folder_of(attempt).supervisor.exists)


def test_order_that_is_given_twice_is_one_run_that_ends_when_it_is_stopped(engine, prepared):
    attempt = prepared()
    folder = launcher.folder_of(attempt)

    start(engine, attempt)
    first = read_record(folder.supervisor)
    start(engine, attempt)

    assert read_record(folder.supervisor) == first
    assert engine.stop(order_of(attempt), reason="cancel", grace_s=5, saved=False)
    wait_until(folder.exit.exists)
    assert (read_record(folder.exit) or {})["kind"] == "cancelled"


def test_no_supervisor_starts_after_it_was_forestalled(engine, prepared):
    attempt = prepared()

    assert engine.forestall(order_of(attempt), {"kind": "infra", "nonce": attempt.nonce})
    with suppress(NotStarted):  # it may also say so
        engine.start(order_of(attempt), {})

    folder = launcher.folder_of(attempt)
    assert not folder.supervisor.exists()
    assert (read_record(folder.exit) or {})["kind"] == "infra"


def test_living_supervisor_cannot_be_forestalled(engine, prepared):
    attempt = prepared()
    start(engine, attempt)

    assert not engine.forestall(order_of(attempt), {"kind": "infra"})

    engine.stop(order_of(attempt), reason="cancel", grace_s=0, saved=False)
    wait_until(launcher.folder_of(attempt).exit.exists)


@pytest.mark.parametrize("hears", [True, False])
def test_profile_is_asked_of_a_process_that_can_make_one(engine, prepared, hears):
    hearing = b"import signal\nsignal.signal(signal.SIGRTMIN + 11, lambda *_: print('asked', flush=True))\n"
    attempt = prepared(hearing + SCRIPT if hears else SCRIPT)
    folder = launcher.folder_of(attempt)
    start(engine, attempt)
    wait_until(lambda: folder.log(0).exists() and "up" in folder.log(0).read_text())

    assert engine.request_profile(order_of(attempt)) is hears

    if hears:
        wait_until(lambda: "asked" in folder.log(0).read_text())
    engine.stop(order_of(attempt), reason="cancel", grace_s=0, saved=False)
    wait_until(folder.exit.exists)


def test_order_without_a_folder_is_not_sent(engine, home, db):
    nowhere = Order(uuid4(), 1, "0" * 32)

    assert not engine.stop(nowhere, reason="cancel", grace_s=1, saved=False)
    assert not engine.request_checkpoint(nowhere)
    assert engine.request_profile(nowhere) is None
    assert engine.forestall(nowhere, {"kind": "infra"})
