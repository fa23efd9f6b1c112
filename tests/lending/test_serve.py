"""The thread of all lenders: one that cannot be asked keeps no other from its turn, and says why."""

import json
import threading
from datetime import UTC, datetime

import pytest

from orchestrator.lending.serve import Lending
from orchestrator.models import Lender, Pilot
from orchestrator.nodes.copies import Copy
from orchestrator.supervisor.liveness import Liveness

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)


@pytest.fixture
def lending(home, db) -> Lending:
    home.nodes.mkdir(exist_ok=True)
    (home.nodes / "token").write_text("t")
    return Lending("10.0.0.5:6380", threading.Event())


def test_cluster_that_cannot_be_asked_is_told_on_its_pool_alone(
    lending, make_pool, make_job, monkeypatch, tmp_path
):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    Lender.objects.create(pool=make_pool("a"), system="kubernetes", image="berth:1")
    Lender.objects.create(pool=make_pool("b"), system="slurm")
    make_job(pool=make_pool("b"), wait_code="lent")

    lending.turn(NOW)

    assert "give a KUBECONFIG" in Lender.objects.get(pool="a").problem
    assert "sbatch is not installed on this server" in Lender.objects.get(pool="b").problem
    assert not Pilot.objects.exists()


def test_loss_of_a_job_is_told_until_the_agent_has_heard_it(
    lending, home, make_pool, make_attempt, make_device
):
    Pilot.objects.create(
        name="cluster-slurm-1",
        tag="t",
        pool=make_pool("cluster"),
        system="slurm",
        devices=1,
        longest_s=60,
        state="ended",
        requested_at=NOW,
    )
    attempt = make_attempt(devices=[make_device(0, node="cluster-slurm-1")])
    folder = home.job(attempt.job_id).attempt(attempt.number)
    folder.root.mkdir(parents=True)
    copy = Copy(folder, attempt.nonce)
    copy.want()
    copy.take()
    (folder.root / "node.json").write_text(json.dumps({"state": Liveness.ALIVE}))

    lending.turn(NOW)

    assert copy.state() is Liveness.LOST
