"""A pool's turn: asked for when jobs wait, given back when idle, and every end of an allocation settled once."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.agent.inventory import record_inventory
from orchestrator.lending.pool_lending import PoolLending
from orchestrator.lending.port import Grant, GrantState, NoAnswer, PilotRequest, Refused
from orchestrator.models import Attempt, Device, Lender, Pilot
from orchestrator.nodes.copies import Copy
from orchestrator.nodes.reports import read_reports, write_report
from orchestrator.supervisor.liveness import Liveness
from tests.nodes.test_reports import NODE, gpu, read

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)


class Cluster:
    """A system that lends what it is told to, and may lose its answers."""

    def __init__(self) -> None:
        self.asked: list[PilotRequest] = []
        self.grants_by_tag: dict[str, Grant] = {}
        self.released: list[str] = []
        self.refusal = ""
        self.loses_answers = False

    def request(self, wish: PilotRequest) -> str:
        if self.refusal:
            raise Refused(self.refusal)
        self.asked.append(wish)
        number = str(len(self.asked))
        self.grants_by_tag[wish.tag] = Grant(number, wish.tag, GrantState.WAITING, "Resources")
        if self.loses_answers:
            raise NoAnswer("Socket timed out")
        return number

    def grants(self, tags: Collection[str]) -> Mapping[str, Grant]:
        return {tag: grant for tag, grant in self.grants_by_tag.items() if tag in tags}

    def release(self, grant: str) -> None:
        self.released.append(grant)

    def note(self, pilot: Pilot, state: GrantState, **facts: object) -> None:
        self.grants_by_tag[pilot.tag] = Grant(pilot.grant or "1", pilot.tag, state, **facts)  # type: ignore[arg-type]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def lender(make_pool, home) -> Lender:
    return Lender.objects.create(
        pool=make_pool("cluster"), system="slurm", gpus=2, most_pilots=2, longest_s=3600, idle_s=300
    )


@pytest.fixture
def waiting(make_job, lender):
    """A job that waits for one of the pool's devices."""
    return make_job(pool=lender.pool, wait_code="lent")


def turn(lender: Lender, cluster: Cluster, after_s: float = 0.0) -> None:
    lender.refresh_from_db()
    lending = PoolLending(lender, cluster, "10.0.0.5:6380", "token", NOW + timedelta(seconds=after_s))
    lending.turn()
    lending.give_back_spent()


def hold(cluster: Cluster, lasts_s: float = 3600) -> Pilot:
    """Have the only pilot's allocation begin."""
    pilot = Pilot.objects.open().get()
    began = NOW.timestamp()
    cluster.note(pilot, GrantState.HELD, held_at=began, until=began + lasts_s, where="n1")
    return pilot


def join(home, pilot: Pilot) -> None:
    """Have the pilot's server join with two GPUs."""
    write_report(home.nodes, NODE._replace(name=pilot.name), read(gpu(0), gpu(1)))
    record_inventory([info for report in read_reports(home.nodes) for info in report.devices])


def test_waiting_job_asks_for_one_allocation_however_often_it_is_looked_at(lender, cluster, waiting):
    for _ in range(3):
        turn(lender, cluster)

    (wish,) = cluster.asked
    assert (wish.name, wish.gpus, wish.longest_s) == ("cluster-slurm-1", 2, 3600)
    pilot = Pilot.objects.get()
    assert (pilot.state, pilot.reason, pilot.grant) == ("waiting", "Resources", "1")


def test_request_whose_answer_was_lost_is_found_again_and_not_repeated(lender, cluster, waiting):
    cluster.loses_answers = True
    with pytest.raises(NoAnswer):
        turn(lender, cluster)

    turn(lender, cluster)

    assert len(cluster.asked) == 1
    assert Pilot.objects.get().grant == "1"


def test_request_that_never_arrived_is_repeated_after_a_minute(lender, cluster, waiting):
    cluster.loses_answers = True
    with pytest.raises(NoAnswer):
        turn(lender, cluster)
    cluster.grants_by_tag.clear()
    cluster.loses_answers = False

    turn(lender, cluster, 30)
    assert len(cluster.asked) == 1
    turn(lender, cluster, 61)

    assert len(cluster.asked) == 2
    assert Pilot.objects.open().count() == 1


def test_refusal_stands_on_the_pool_until_the_system_lends_again(lender, cluster, waiting):
    cluster.refusal = "sbatch: error: invalid partition specified: nope"
    turn(lender, cluster)

    lender.refresh_from_db()
    assert lender.problem == cluster.refusal
    assert not Pilot.objects.exists()

    cluster.refusal = ""
    turn(lender, cluster, 30)
    assert not cluster.asked  # asking each two seconds would only fill its log
    turn(lender, cluster, 61)
    lender.refresh_from_db()
    assert lender.problem == ""
    assert len(cluster.asked) == 1


def test_devices_of_a_pilot_come_into_the_pool_that_asked_for_it(lender, cluster, waiting, home):
    turn(lender, cluster)
    pilot = hold(cluster)
    turn(lender, cluster, 1)

    join(home, pilot)

    assert {device.pool_id for device in Device.objects.filter(node=pilot.name)} == {"cluster"}


def test_pilot_that_is_used_is_kept_and_given_back_once_idle(lender, cluster, waiting, home, make_attempt):
    turn(lender, cluster)
    pilot = hold(cluster)
    turn(lender, cluster, 1)
    join(home, pilot)
    attempt = make_attempt(waiting, devices=[Device.objects.filter(node=pilot.name).first()])

    turn(lender, cluster, 1000)
    assert not cluster.released
    attempt.leases.update(ended_at=NOW)
    turn(lender, cluster, 1299)
    assert Pilot.objects.get().given_back_at is None
    turn(lender, cluster, 1301)  # closed to jobs ...
    turn(lender, cluster, 1303)  # ... and given back

    assert set(cluster.released) == {"1"}


def test_request_is_withdrawn_when_its_job_was_cancelled(lender, cluster, waiting):
    turn(lender, cluster)
    turn(lender, cluster)
    waiting.delete()

    turn(lender, cluster, 10)

    assert cluster.released == ["1"]


def test_jobs_of_an_allocation_that_ended_early_are_lost_and_its_server_is_off_the_list(
    lender, cluster, waiting, home, make_attempt
):
    turn(lender, cluster)
    pilot = hold(cluster)
    turn(lender, cluster, 1)
    join(home, pilot)
    copy = running_copy(home, make_attempt(waiting, devices=[Device.objects.filter(node=pilot.name).first()]))

    cluster.note(pilot, GrantState.ENDED, reason="Cancelled")
    turn(lender, cluster, 60)

    assert copy.state() is Liveness.LOST
    assert read_reports(home.nodes) == []
    assert not [device for device in Device.objects.filter(node=pilot.name) if device.usable]
    pilot.refresh_from_db()
    assert (pilot.state, pilot.reason) == ("ended", "Cancelled")


def test_server_that_slurm_gave_up_may_still_run_its_jobs_until_its_time_is_over(
    lender, cluster, waiting, home, make_attempt
):
    turn(lender, cluster)
    pilot = hold(cluster)
    turn(lender, cluster, 1)
    join(home, pilot)
    copy = running_copy(home, make_attempt(waiting, devices=[Device.objects.filter(node=pilot.name).first()]))

    cluster.note(pilot, GrantState.ENDED, reason="Node fail", is_proof=False)
    turn(lender, cluster, 60)
    assert copy.state() is not Liveness.LOST
    Lender.objects.update(longest_s=60)  # which changes nothing for a pilot that is there
    turn(lender, cluster, 3600 + 299)
    assert copy.state() is not Liveness.LOST
    turn(lender, cluster, 3600 + 301)  # its guard has ended all, however late it began

    assert copy.state() is Liveness.LOST


def test_allocation_that_its_system_has_forgotten_may_run_until_its_time_is_over(
    lender, cluster, waiting, home, make_attempt
):
    turn(lender, cluster)
    pilot = hold(cluster)
    turn(lender, cluster, 1)
    join(home, pilot)
    copy = running_copy(home, make_attempt(waiting, devices=[Device.objects.filter(node=pilot.name).first()]))

    cluster.grants_by_tag.clear()
    turn(lender, cluster, 900)
    assert copy.state() is not Liveness.LOST
    turn(lender, cluster, 3600 + 301)

    assert copy.state() is Liveness.LOST


def test_allocation_whose_end_comes_early_by_slurms_word_is_not_over_before_slurm_has_proof(
    lender, cluster, waiting, home, make_attempt
):
    """A job that still completes has a new end, which is now; its server may be gone."""
    turn(lender, cluster)
    pilot = hold(cluster)
    turn(lender, cluster, 1)
    join(home, pilot)
    copy = running_copy(home, make_attempt(waiting, devices=[Device.objects.filter(node=pilot.name).first()]))

    hold(cluster, lasts_s=60)
    turn(lender, cluster, 61)
    cluster.note(pilot, GrantState.ENDED, reason="Node fail", is_proof=False)
    turn(lender, cluster, 120)

    assert copy.state() is not Liveness.LOST


def test_name_comes_again_only_when_no_job_of_its_last_allocation_is_open(
    lender, cluster, waiting, home, make_attempt, make_job
):
    turn(lender, cluster)
    pilot = hold(cluster)
    turn(lender, cluster, 1)
    join(home, pilot)
    attempt = make_attempt(waiting, devices=[Device.objects.filter(node=pilot.name).first()])
    cluster.note(pilot, GrantState.ENDED, reason="Cancelled")
    make_job(pool=lender.pool, wait_code="lent")

    turn(lender, cluster, 60)
    assert [wish.name for wish in cluster.asked] == ["cluster-slurm-1", "cluster-slurm-2"]

    Attempt.objects.filter(pk=attempt.pk).update(state="ended")
    make_job(pool=lender.pool, wait_code="lent", gpus=2)
    turn(lender, cluster, 70)
    assert cluster.asked[-1].name == "cluster-slurm-1"


def test_pilot_near_its_end_is_no_room_for_waiting_jobs(lender, cluster, waiting, home):
    turn(lender, cluster)
    pilot = hold(cluster)
    turn(lender, cluster, 1)
    join(home, pilot)

    turn(lender, cluster, 3600 - 600)

    assert len(cluster.asked) == 2
    assert Pilot.objects.get(pk=pilot.pk).given_back_at is not None


def test_allocation_from_which_no_server_joins_is_given_back(lender, cluster, waiting):
    turn(lender, cluster)
    hold(cluster)
    turn(lender, cluster, 1)

    turn(lender, cluster, 302)
    turn(lender, cluster, 304)

    assert cluster.released == ["1"]


def test_pool_that_is_to_have_none_gives_all_back_though_jobs_wait(lender, cluster, waiting):
    turn(lender, cluster)
    turn(lender, cluster, 1)
    Lender.objects.update(most_pilots=0)

    turn(lender, cluster, 2)

    assert cluster.released == ["1"]


def test_job_that_no_allocation_is_long_enough_for_asks_for_none(lender, cluster, make_job):
    make_job(pool=lender.pool, wait_code="lent", wait_facts={"needs_s": 9000, "longest_s": 3000})

    turn(lender, cluster)

    assert not cluster.asked


def running_copy(home, attempt: Attempt) -> Copy:
    folder = home.job(attempt.job_id).attempt(attempt.number)
    folder.root.mkdir(parents=True)
    copy = Copy(folder, attempt.nonce)
    copy.want()
    copy.take()
    return copy
