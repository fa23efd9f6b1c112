"""Every engine, over a sound line and over one that loses, doubles and delays its calls."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.jobs.launch import launcher
from orchestrator.jobs.launch.engines import Engine, order_of
from orchestrator.jobs.launch.engines.servers import LocalEngine
from orchestrator.models import Attempt, Job
from orchestrator.nodes.port import LocalPort
from orchestrator.supervisor.protocol.folder import AttemptFolder
from tests.engines.lines import BadLine, BadPort
from tests.engines.linked import LinkedEngine

SCRIPT = b"import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: exit(0))\nprint('up', flush=True)\ntime.sleep(600)\n"


@contextmanager
def local(_there: Path) -> Iterator[Engine]:
    yield LocalEngine()


@contextmanager
def local_bad_line(_there: Path) -> Iterator[Engine]:
    yield BadLine(LocalEngine())


@contextmanager
def linked(there: Path) -> Iterator[Engine]:
    with LinkedEngine(LocalPort("there", there, "cpu:2"), there) as engine:
        yield engine


@contextmanager
def linked_bad_line(there: Path) -> Iterator[Engine]:
    with LinkedEngine(BadPort(LocalPort("there", there, "cpu:2")), there) as engine:
        yield engine


ENGINES = {
    "local": local,
    "local-bad-line": local_bad_line,
    "linked": linked,
    "linked-bad-line": linked_bad_line,
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, home, tmp_path: Path) -> Iterator[Engine]:
    with ENGINES[request.param](tmp_path / "there") as engine:
        yield engine


@pytest.fixture
def prepared(make_attempt, make_job, store_script) -> Callable[..., Attempt]:
    """An attempt with its folder and launch record, and no supervisor."""

    def make(script: bytes = SCRIPT) -> Attempt:
        attempt: Attempt = make_attempt(make_job(bundle=store_script(script)))
        launcher.prepare(Job.objects.select_related("pool").get(pk=attempt.job_id), attempt)
        return attempt

    return make


@pytest.fixture
def on_node(engine) -> Callable[[Attempt], AttemptFolder]:
    """The folder of an attempt on the server that runs it, where it is once it was brought there."""

    def find(attempt: Attempt) -> AttemptFolder:
        if isinstance(engine, LinkedEngine):
            return engine.bring(order_of(attempt))
        return launcher.folder_of(attempt)

    return find
