"""Lenders of pools: set, shown and removed by admins, refused with a sentence where they cannot work."""

from dataclasses import replace

import pytest
from django.utils import timezone

from orchestrator.models import AuditEntry, Lender, Pilot

SLURM = {"system": "slurm", "partition": "gpu", "account": "vision", "gpus": 4, "cpus": 32}
PATH = "/pools/cluster/lender"


@pytest.fixture
def pool(make_pool, settings, home):
    """A pool of a server that others may join."""
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, nodes=("10.0.0.5", 6380))
    return make_pool("cluster")


@pytest.fixture
def admin(client_of, root, pool):
    return client_of(root)


def test_lender_is_set_shown_and_kept_in_the_audit(admin):
    made = admin.send("PUT", PATH, SLURM)

    assert made.status_code == 200, made.json()
    shown = admin.send("GET", PATH).json()
    assert shown == made.json()
    assert (shown["partition"], shown["longest_s"], shown["leave_before_s"], shown["pilots"]) == (
        "gpu",
        14400,
        600,
        [],
    )
    assert "partition 'gpu'" in AuditEntry.objects.get(action="pool.lent").text


def test_everybody_sees_what_a_cluster_lends(admin, client_of, ada, pool):
    admin.send("PUT", PATH, SLURM)
    pilot(pool, state="waiting", reason="Priority", grant="17")

    (shown,) = client_of(ada).send("GET", PATH).json()["pilots"]

    assert (shown["name"], shown["grant"], shown["reason"]) == ("cluster-slurm-1", "17", "Priority")
    assert "tag" not in shown


def test_new_settings_clear_an_old_refusal(admin, pool):
    admin.send("PUT", PATH, SLURM)
    Lender.objects.update(
        problem="sbatch: error: invalid partition specified: gpu", problem_at=timezone.now()
    )

    assert admin.send("PUT", PATH, {**SLURM, "partition": "a100"}).json()["problem"] == ""


def test_lender_is_removed_once_it_has_no_allocation(admin, pool):
    admin.send("PUT", PATH, SLURM)
    row = pilot(pool, state="held", grant="17")

    refused = admin.send("DELETE", PATH)
    assert refused.status_code == 409
    assert "Set most_pilots to 0" in refused.json()["detail"]
    row.state = "ended"
    row.save()

    assert admin.send("DELETE", PATH).status_code == 204
    assert admin.send("GET", PATH).status_code == 404


def test_system_is_not_changed_under_open_allocations(admin, pool):
    admin.send("PUT", PATH, SLURM)
    pilot(pool, state="held", grant="17")

    refused = admin.send("PUT", PATH, {"system": "kubernetes", "image": "berth:1"})

    assert refused.status_code == 409
    assert "still has allocations of Slurm" in refused.json()["detail"]


def test_server_that_nobody_can_join_lends_nothing(client_of, root, make_pool):
    make_pool("cluster")

    refused = client_of(root).send("PUT", PATH, SLURM)

    assert refused.status_code == 422
    assert "set BERTH_NODES" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"partition": "gpu --wrap=id"}, "partition"),
        ({"account": "-x"}, "account"),
        ({"via": "-oProxyCommand=id"}, "via"),
        ({"longest_s": 600}, "leave_before_s"),
        ({"system": "kubernetes"}, "image"),
        ({"cpus": 0}, "cpus"),
    ],
)
def test_what_cannot_work_is_refused_with_its_field(admin, change, field):
    refused = admin.send("PUT", PATH, {**SLURM, **change})

    assert refused.status_code == 400
    assert field in str(refused.json())
    assert not Lender.objects.exists()


def test_job_is_accepted_where_an_allocation_would_have_its_devices(admin, client_of, ada):
    admin.send("PUT", PATH, SLURM)
    body = {"source": {"text": "print(1)"}, "pool": "cluster"}

    assert client_of(ada).send("POST", "/jobs", {**body, "gpus": 4}).status_code == 201
    refused = client_of(ada).send("POST", "/jobs", {**body, "gpus": 5})
    assert refused.status_code == 422
    assert "Pool cluster has 4 devices; 5 were asked for." in refused.json()["detail"]


def pilot(pool, **fields) -> Pilot:
    return Pilot.objects.create(
        pool=pool,
        name="cluster-slurm-1",
        tag="t",
        system="slurm",
        devices=4,
        longest_s=3600,
        requested_at=timezone.now(),
        **fields,
    )
