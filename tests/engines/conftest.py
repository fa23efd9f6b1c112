"""Every engine, over a sound line and over one that loses, doubles and delays its calls."""

from collections.abc import Callable

import pytest

from orchestrator.jobs.launch import launcher
from orchestrator.jobs.launch.engines import Engine
from orchestrator.jobs.launch.engines.local import LocalEngine
from orchestrator.models import Attempt, Job
from tests.engines.lines import BadLine

SCRIPT = b"import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: exit(0))\nprint('up', flush=True)\ntime.sleep(600)\n"
ENGINES: dict[str, Callable[[], Engine]] = {
    "local": LocalEngine,
    "local-bad-line": lambda: BadLine(LocalEngine()),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]()


@pytest.fixture
def prepared(make_attempt, make_job, store_script) -> Callable[..., Attempt]:
    """An attempt with its folder and launch record, and no supervisor."""

    def make(script: bytes = SCRIPT) -> Attempt:
        attempt: Attempt = make_attempt(make_job(bundle=store_script(script)))
        launcher.prepare(Job.objects.select_related("pool").get(pk=attempt.job_id), attempt)
        return attempt

    return make
