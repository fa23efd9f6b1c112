"""The pages of pools, devices and datasets."""

from contextlib import suppress
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from orchestrator.exceptions import NotFound
from orchestrator.jobs import pushing
from orchestrator.models import (
    Attempt,
    AttemptState,
    Booking,
    Dataset,
    DatasetRoot,
    Device,
    ExitKind,
    Lease,
    Lender,
    Pilot,
    PoolRight,
    Quota,
    Right,
)
from orchestrator.spec.job_spec import GIB
from tests.api.conftest import ApiClient
from tests.dashboard.markup import html_of


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "words.txt").write_text("to be or not to be")
    return DatasetRoot.objects.create(name="data", path=str(folder))


def test_a_member_sees_pools_without_what_changes_them(reader, ada, make_device):
    make_device(0)

    page = html_of(reader(ada).get(reverse("pools")))

    assert "simulated GPU 0" in page
    assert 'action="/change"' not in page


def test_an_operator_of_one_pool_changes_that_one(reader, ada, make_device, make_pool):
    make_device(0)
    make_device(1, pool=make_pool("lab"))
    PoolRight.objects.create(pool=make_pool("lab"), user=ada, right=Right.OPERATE)

    page = html_of(reader(ada).get(reverse("pools")))

    assert "PATCH /api/v1/pools/lab" in page
    assert "PATCH /api/v1/pools/default" not in page
    assert "/api/v1/quotas" not in page


def test_pool_tells_what_a_cluster_lends_and_why_it_refuses(reader, ada, make_pool):
    now = timezone.now()
    pool = make_pool("cluster")
    Lender.objects.create(
        pool=pool,
        system="slurm",
        partition="gpu",
        gpus=4,
        problem="sbatch: error: <bad> account",
        problem_at=now,
    )
    row = {"pool": pool, "system": "slurm", "devices": 4, "longest_s": 3600, "requested_at": now}
    Pilot.objects.create(
        name="cluster-slurm-1", tag="a", grant="17", state="waiting", reason="Priority", **row
    )
    Pilot.objects.create(name="cluster-slurm-9", tag="b", grant="3", state="ended", **row)

    page = html_of(reader(ada).get(reverse("pools")))

    assert "Lent by Slurm" in page
    assert "each of 4 devices for 4 h" in " ".join(page.split())
    assert "sbatch: error: &lt;bad&gt; account" in page
    assert "cluster-slurm-1" in page
    assert "Priority" in page
    assert "cluster-slurm-9" not in page
    assert "No devices" not in page


def test_device_that_a_cluster_took_back_is_not_missed(reader, ada, make_device, make_pool):
    pool = make_pool("cluster")
    device = make_device(0, pool=pool, node="cluster-slurm-1", health="missing")
    assert device.label in html_of(reader(ada).get(reverse("pools")))

    Lender.objects.create(pool=pool, system="slurm")

    assert device.label not in html_of(reader(ada).get(reverse("pools")))


def test_pool_shows_how_good_memory_claims_were(reader, ada, make_attempt, make_device):
    claimed = {"bytes": 10 * GIB, "source": "learned", "error_percent": 5.0, "runs": 3}
    attempt = make_attempt(devices=[make_device(0)], memory_bytes=10 * GIB, memory_claim=claimed)
    Lease.objects.update(peak_bytes=8 * GIB)
    Attempt.objects.filter(pk=attempt.pk).update(state=AttemptState.ENDED, kind=ExitKind.OK)

    page = " ".join(html_of(reader(ada).get(reverse("pools"))).split())

    assert "learned 25 % off (median of 1 run), 0 % too small." in page


def test_an_administrator_sees_quotas(reader, root, ada, make_pool):
    make_pool()
    Quota.objects.create(user=ada, max_devices=2)

    page = html_of(reader(root).get(reverse("pools")))

    assert "2 devices at once." in page


def change(browser, do: str, **fields):
    return browser.post(reverse("change"), {"do": do, "done": "Done.", **fields}, follow=True)


def test_without_javascript_a_form_drains_a_device_and_says_so(home, reader, root, make_device):
    device = make_device(0)

    answer = change(reader(root), f"PATCH /api/v1/devices/{device.pk}", state="draining")

    device.refresh_from_db()
    assert device.admin_state == "draining"
    assert answer.redirect_chain == [(reverse("pools"), 302)]
    assert "Done." in html_of(answer)


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("http://testserver/pools", "/pools"),
        ("http://testserver//evil.example/x", "/evil.example/x"),
        ("", "/pools"),
    ],
)
def test_a_plain_form_leads_back_to_its_page_and_never_to_another_host(
    reader, root, make_device, page, expected
):
    device = make_device(0)
    form = {"do": f"PATCH /api/v1/devices/{device.pk}", "state": "draining"}

    answer = reader(root).post(reverse("change"), form, headers={"Referer": page})

    assert answer["Location"] == expected


def test_what_a_plain_form_says_means_what_the_rest_api_takes(
    home, reader, root, ada, make_pool, make_device
):
    pool, browser = make_pool("lab"), reader(root)
    make_device(0, pool=pool)
    booking = {"pool": "lab", "name": "paper", "kind": "reservation", "devices:number": "1"}
    day = (timezone.now() + timedelta(days=2)).date().isoformat()
    times = {"from:moment": f"{day}T08:00", "until:moment": f"{day}T18:00"}

    change(browser, "PATCH /api/v1/pools/lab", **{"open:switch": ["", "on"], "description": "ours"})
    change(
        browser,
        "POST /api/v1/quotas",
        **{"user:optional": "", "pool:optional": "lab", "max_devices:number": "2"},
    )
    change(browser, "PUT /api/v1/pools/lab/rights/{username}", username="ada", right="submit")
    said = change(browser, "POST /api/v1/reservations", **booking, **times, **{"people:words": "ada, "})

    pool.refresh_from_db()
    assert (pool.open, pool.description) == (True, "ours")
    assert Quota.objects.get().max_devices == 2
    assert PoolRight.objects.get().user == ada
    assert "Done." in html_of(said)
    made = Booking.objects.get()
    assert (made.count, made.start.isoformat()) == (1, f"{day}T08:00:00+00:00")


def test_a_plain_form_is_refused_in_words_as_the_rest_api_refuses(
    home, reader, root, ada, make_device, make_pool
):
    device = make_device(0)
    make_pool()

    by_member = change(reader(ada), f"PATCH /api/v1/devices/{device.pk}", state="draining")
    wrong = change(
        reader(root), "POST /api/v1/quotas", **{"max_devices:number": "many", "user:optional": "ada"}
    )

    assert "Only operators may do this" in html_of(by_member)
    assert "max_devices: " in html_of(wrong)
    device.refresh_from_db()
    assert device.admin_state == "enabled"
    assert not Quota.objects.exists()


@pytest.mark.parametrize("do", ["", "GET /api/v1/devices", "DELETE /api/v1/jobs/1", "PATCH /admin/"])
def test_plain_forms_reach_pools_devices_quotas_and_reservations_only(home, reader, root, do):
    assert change(reader(root), do).status_code == 404


def test_a_plain_form_needs_its_token(home, root):
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(root)

    assert change(browser, "POST /api/v1/pools", name="mine").status_code == 403


def move(user, device: Device, pool: str):
    browser = ApiClient()
    browser.handler.enforce_csrf_checks = False
    browser.force_login(user)
    return browser.send("PATCH", f"/devices/{device.pk}", {"pool": pool})


def test_a_free_device_moves_to_another_pool(home, root, make_device, make_pool):
    device = make_device(0)
    make_pool("lab")

    assert move(root, device, "lab").json()["pool"] == "lab"
    device.refresh_from_db()
    assert device.pool_id == "lab"


def test_a_device_that_holds_a_job_stays(home, root, make_attempt, make_pool):
    device = make_attempt().leases.get().device
    make_pool("lab")

    answer = move(root, device, "lab")

    assert answer.status_code == 409
    assert "Drain it" in answer.json()["detail"]


def test_t03_a_device_moves_only_where_its_mover_operates_both_pools(home, ada, make_device, make_pool):
    device = make_device(0)
    PoolRight.objects.create(pool=device.pool, user=ada, right=Right.OPERATE)
    make_pool("lab")

    assert move(ada, device, "lab").status_code == 403
    assert move(ada, device, "nowhere").status_code == 422


def test_the_page_of_a_device_names_who_held_it(reader, ada, bob, make_attempt):
    attempt = make_attempt(name="mine")
    address = reverse("device", args=[attempt.leases.get().device_id])

    assert f'href="/jobs/{attempt.job_id}"' in html_of(reader(ada).get(address))
    seen_by_bob = html_of(reader(bob).get(address))
    assert "mine" in seen_by_bob
    assert f"/jobs/{attempt.job_id}" not in seen_by_bob


def test_a_device_that_is_not_there_is_404(reader, ada):
    assert reader(ada).get(reverse("device", args=["sim-99"])).status_code == 404


def test_a_dataset_is_added_and_listed_with_size_checksum_and_users(reader, ada, data, make_job):
    browser = reader(ada)
    make_job(name="reads-it", spec={"datasets": ["words@1"]})

    answer = browser.post(
        reverse("datasets"), {"name": "words", "version": "1", "root": "data", "path": "words.txt"}
    )
    page = html_of(browser.get(answer["Location"]))

    dataset = Dataset.objects.get()
    assert dataset.size_bytes == 18
    assert dataset.sha256[:12] in page
    assert "18 bytes" in page
    assert "reads-it" in page


def test_b35_a_path_that_leaves_its_root_is_refused_beside_the_field(reader, ada, data):
    form = {"name": "words", "version": "1", "root": "data", "path": "../../etc/passwd"}

    answer = reader(ada).post(reverse("datasets"), form)

    assert answer.status_code == 400
    assert 'id="path-error"' in html_of(answer)
    assert 'value="../../etc/passwd"' in html_of(answer)


def test_a_dataset_whose_files_are_gone_says_so(reader, ada, data):
    Dataset.objects.create(name="gone", root=data, path="gone.txt", owner=ada)

    assert "no: check the path" in html_of(reader(ada).get(reverse("datasets")))


def test_without_javascript_an_owner_removes_pushed_data_and_others_do_not_see_it(home, reader, ada, bob):
    file = pushing.PushedFile("a.csv", 3, "", "today")
    for _ in range(2):
        pushing.push(ada, name="digits", version=None, description="", files=[file], is_file=True)
        with suppress(NotFound):  # the second time it is here
            pushing.take_part(ada, file.key, 0, 3, "", b"1,2", "")

    page = html_of(reader(ada).get(reverse("datasets")))
    assert "pushed, for your jobs only" in page
    assert "3 bytes of 100.0 GiB in use" in " ".join(page.split())
    assert "digits" not in html_of(reader(bob).get(reverse("datasets"))).partition("Upload a dataset")[0]
    answer = change(reader(bob), "DELETE /api/v1/datasets/{name}", name="ada/digits@1")
    assert Dataset.objects.exists()
    answer = change(reader(ada), "DELETE /api/v1/datasets/{name}", name="ada/digits@1")
    assert "Done." in html_of(answer)
    assert not Dataset.objects.exists()
