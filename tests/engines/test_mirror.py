"""What a link brings to a node and back, beyond what every engine has to do."""

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.jobs.launch import launcher
from orchestrator.jobs.launch.engines import order_of
from orchestrator.links.mirror import Mirror
from orchestrator.models import Attempt, Dataset, DatasetRoot, Job
from orchestrator.nodes.fence import raise_fence
from orchestrator.nodes.places import places_here
from orchestrator.nodes.port import Grant, LocalPort
from orchestrator.store.layout import Home
from orchestrator.supervisor.liveness import Liveness
from orchestrator.supervisor.protocol.records import read_record, write_record
from orchestrator.supervisor.watch.finished_files import read_finished_files, write_finished_files
from tests.engines.conftest import SCRIPT
from tests.waiting import wait_until


@pytest.fixture
def there(tmp_path: Path) -> LocalPort:
    return LocalPort("there", tmp_path / "there", "cpu:1")


@pytest.fixture
def mirrored(there, home, prepared, tmp_path) -> Callable[[], tuple[Mirror, Path]]:
    """An attempt that was brought to the node, and the folder of its job there."""

    def make() -> tuple[Mirror, Path]:
        attempt = prepared()
        mirror = Mirror(there, order_of(attempt), home.job(attempt.job_id))
        mirror.push()
        return mirror, Home(tmp_path / "there").job(attempt.job_id).root

    return make


def test_file_that_is_being_written_is_left_out_until_it_is_closed_or_the_run_is_over(mirrored, home):
    mirror, folder = mirrored()
    here = home.root / "jobs" / folder.name / "checkpoints" / "model.pt"

    with (folder / "checkpoints" / "model.pt").open("wb") as file:
        file.write(b"half")
        file.flush()
        mirror.pull_trees(closed=True)
        assert not here.exists()
        mirror.pull_trees(closed=False)
        assert here.read_bytes() == b"half"
        file.write(b" and half")

    mirror.pull_trees(closed=True)
    assert here.read_bytes() == b"half and half"


def test_event_files_come_while_they_are_open(mirrored, home):
    mirror, folder = mirrored()
    name = "events.out.tfevents.1.host"

    with (folder / "work" / name).open("wb") as file:
        for text in (b"one ", b"two"):
            file.write(text)
            file.flush()
            mirror.pull_trees(closed=True)

        assert (home.root / "jobs" / folder.name / "work" / name).read_bytes() == b"one two"


def test_what_the_run_removed_is_removed_here(mirrored, home):
    mirror, folder = mirrored()
    (folder / "output" / "old").mkdir()
    (folder / "output" / "old" / "result").write_text("1")
    mirror.pull_trees(closed=True)

    (folder / "output" / "old" / "result").unlink()
    (folder / "output" / "old").rmdir()
    mirror.pull_trees(closed=True)

    assert list((home.root / "jobs" / folder.name / "output").iterdir()) == []


def test_files_here_stay_when_the_node_lost_its_disk(mirrored, home, there):
    mirror, folder = mirrored()
    (folder / "checkpoints" / "model.pt").write_bytes(b"weights")
    mirror.pull_trees(closed=True)

    there.forget(mirror._order.job)
    mirror.pull_trees(closed=False)

    assert (home.root / "jobs" / folder.name / "checkpoints" / "model.pt").read_bytes() == b"weights"


def test_files_that_the_supervisor_saw_finished_are_proven_here_too(mirrored, there):
    mirror, folder = mirrored()
    path = folder / "checkpoints" / "model.pt"
    path.write_bytes(b"weights")
    attempt = folder / "attempts" / "1"
    status = path.stat()
    signature = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    write_finished_files(attempt / "finished_files.json", {"checkpoints/model.pt": signature})

    mirror.pull_trees(closed=True)

    copy = mirror.attempt.root.parents[1] / "checkpoints" / "model.pt"
    ((name, seen),) = read_finished_files(mirror.attempt).items()
    assert (name, seen[:2]) == ("checkpoints/model.pt", (copy.stat().st_ino, 7))


def test_finished_files_of_an_earlier_state_prove_nothing(mirrored):
    mirror, folder = mirrored()
    path = folder / "checkpoints" / "model.pt"
    path.write_bytes(b"weights")
    write_finished_files(
        folder / "attempts" / "1" / "finished_files.json", {"checkpoints/model.pt": (1, 7, 1, 1)}
    )

    mirror.pull_trees(closed=True)

    assert read_finished_files(mirror.attempt) == {}


def test_nothing_is_brought_while_an_earlier_attempt_lives_there(there, home, prepared):
    attempt: Attempt = prepared(SCRIPT)
    order, folder = order_of(attempt), launcher.folder_of(attempt)
    Mirror(there, order, home.job(attempt.job_id)).push()
    record, grant = read_record(folder.launch) or {}, Grant(there.renew(None), 60)
    there.start(order, record, places_here(home.root), {}, grant)
    later = order._replace(attempt=2, nonce="another")
    (home.job(attempt.job_id).attempt(2).root).mkdir()

    with pytest.raises(OSError, match="earlier attempt"):
        Mirror(there, later, home.job(attempt.job_id)).push()

    there.end(order)
    wait_until(lambda: there.look(order).state is Liveness.ENDED)
    Mirror(there, later, home.job(attempt.job_id)).push()


def test_runs_are_listed_and_forgotten_once_they_are_over(there, home, prepared):
    attempt: Attempt = prepared(SCRIPT)
    order = order_of(attempt)
    Mirror(there, order, home.job(attempt.job_id)).push()
    record, grant = read_record(launcher.folder_of(attempt).launch) or {}, Grant(there.renew(None), 60)
    there.start(order, record, places_here(home.root), {}, grant)

    assert [(run.order, run.lives) for run in there.runs()] == [(order, True)]
    there.forget(order.job)
    assert len(there.runs()) == 1  # it lives
    there.end(order)
    wait_until(lambda: not there.runs()[0].lives)
    there.forget(order.job)

    assert there.runs() == []


def test_folder_that_no_order_made_is_no_run(there, tmp_path):
    folder = Home(tmp_path / "there").jobs / "no-uuid" / "attempts" / "1"
    folder.mkdir(parents=True)
    write_record(folder / "launch.json", {"nonce": "n"})

    assert there.runs() == []


def test_start_that_comes_after_its_lease_starts_nothing(there, home, prepared):
    attempt: Attempt = prepared(SCRIPT)
    order, record = order_of(attempt), read_record(launcher.folder_of(attempt).launch) or {}
    Mirror(there, order, home.job(attempt.job_id)).push()

    said = there.start(order, record, places_here(home.root), {}, Grant(there.renew(None), -1))

    assert "after its lease" in said
    assert there.look(order).state is Liveness.NEVER_STARTED


def test_older_attempt_publishes_nothing_once_a_newer_one_is_prepared(mirrored, home):
    mirror, folder = mirrored()
    (folder / "checkpoints" / "model.pt").write_bytes(b"older")
    mirror.pull_trees(closed=True)
    newer = home.job(folder.name).attempt(2).root
    newer.mkdir()
    raise_fence(home.job(folder.name))

    (folder / "checkpoints" / "model.pt").write_bytes(b"from an attempt that was given up")
    (folder / "output" / "late").touch()
    with pytest.raises(OSError, match="newer attempt"):
        mirror.pull_trees(closed=True)

    here = home.job(folder.name)
    assert (here.checkpoints / "model.pt").read_bytes() == b"older"
    assert list(here.output.iterdir()) == []


@pytest.mark.parametrize("has_it", [True, False])
def test_job_reads_a_dataset_where_the_node_keeps_it(
    tmp_path, home, make_attempt, make_job, store_script, ada, has_it
):
    here, there = tmp_path / "data" / "mnist", tmp_path / "elsewhere" / "digits"
    for folder, text in ((here, "of the first server"), (there, "of the node")):
        folder.mkdir(parents=True)
        (folder / "name.txt").write_text(text)
    root = DatasetRoot.objects.create(name="data", path=str(tmp_path / "data"))
    Dataset.objects.create(name="mnist", root=root, path="mnist", owner=ada)
    script = b"import os\nprint(open(os.environ['BERTH_DATASET_MNIST'] + '/name.txt').read(), flush=True)\n"
    attempt: Attempt = make_attempt(make_job(bundle=store_script(script), spec={"datasets": ["mnist"]}))
    launcher.prepare(Job.objects.select_related("pool").get(pk=attempt.job_id), attempt)
    port = LocalPort("there", tmp_path / "there", "cpu:1", data={"mnist": there} if has_it else {})
    assert port.describe().data == (("mnist",) if has_it else ())
    order, record = order_of(attempt), read_record(launcher.folder_of(attempt).launch) or {}
    Mirror(port, order, home.job(attempt.job_id)).push()

    said = port.start(order, record, places_here(home.root), {}, Grant(port.renew(None), 60))

    if not has_it:
        assert said == "There is no dataset mnist@1 on this server."
        assert port.look(order).state is Liveness.NEVER_STARTED
        return
    wait_until(lambda: port.look(order).state is Liveness.ENDED)
    log = Home(tmp_path / "there").job(attempt.job_id).attempt(1).log(0)
    assert log.read_text() == "of the node\n"
