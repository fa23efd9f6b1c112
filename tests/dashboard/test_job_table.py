"""The table of jobs: columns, order, groups, windows, curves, the peek, and views for all."""

import re
from datetime import timedelta
from urllib.parse import parse_qs

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from playwright.sync_api import expect

from dashboard.parts import curves, job_columns
from orchestrator.models import Job, JobArray, JobState, JobView, Person, PoolRight, Right, Role
from orchestrator.store.metrics.writer import MetricWriter, Point
from tests.dashboard.conftest import settle
from tests.dashboard.markup import html_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def table(reader, ada):
    """The names of the jobs in the order of an address."""

    def names(query: str, user=None, address: str = "/jobs") -> list[str]:
        page = html_of(reader(user or ada).get(f"{address}?{query}"))
        return re.findall(r'<tr data-job="\w+" data-id="[\w-]+" data-name="([^"]*)"', page)

    return names


@pytest.fixture
def three(make_job) -> list[Job]:
    return [
        make_job(name=name, spec={"args": ["--lr", lr]}, last_values={"val/acc": value, "loss": value})
        for name, lr, value in (("b", "3e-4", 0.5), ("c", "0.01", 0.25), ("a", "1e-3", 0.75))
    ]


@pytest.mark.parametrize(
    ("order", "found"),
    [
        ("name", "abc"),
        ("-name", "cba"),
        ("arg:lr", "bac"),
        ("-arg:lr", "cab"),
        ("metric:val/acc", "cba"),
        ("-loss", "abc"),
        ("submitted", "bca"),
        ("bogus", "acb"),
        ("metric:", "acb"),
    ],
)
def test_any_column_sorts_numbers_as_numbers(table, three, order, found):
    assert "".join(table(f"sort={order}")) == found
    assert "".join(table(f"sort={order}", address="/jobs/rows")) == found


@pytest.mark.parametrize("key", [column.key for column in job_columns.COLUMNS])
def test_every_column_can_be_shown_and_sorted_both_ways(table, three, make_job, key):
    Job.objects.filter(name="a").update(first_started_at=timezone.now() - timedelta(hours=1))

    for order in (key, f"-{key}"):
        assert sorted(table(f"cols={key}&sort={order}")) == ["a", "b", "c"]


def test_what_is_no_number_or_missing_comes_last_either_way(table, make_job):
    for name, values in (("one", {"loss": 1.0}), ("two", {"loss": 2.0}), ("none", {})):
        make_job(name=name, last_values=values)

    assert table("sort=metric:loss") == ["one", "two", "none"]
    assert table("sort=-metric:loss") == ["two", "one", "none"]


def test_chosen_columns_stand_in_their_order_and_an_unknown_one_is_left_out(reader, ada, three):
    page = html_of(reader(ada).get("/jobs?cols=arg:lr,bogus,metric:val/acc,state"))

    assert re.findall(r'<th scope="col"[^>]*>\s*(?:<a [^>]*>)?<bdi>([^<]*)', page) == [
        "lr",
        "val/acc",
        "State",
    ]
    assert ">0.0003<" in page
    assert ">0.75<" in page


def test_columns_have_room_from_a_width_on_the_first_ones_longest():
    placed = job_columns.place([job_columns.BY_KEY[key] for key in ("state", "curve", "what")])

    assert [each.needs for each in placed] == [450, 550, 900]


def test_jobs_are_grouped_by_argument_with_count_mean_and_best(reader, ada, three, make_job):
    make_job(name="d", spec={"args": ["--lr", "3e-4"]}, last_values={"val/acc": 0.7})
    make_job(name="broken", spec={"args": ["--lr", "3e-4"]}, last_values={"val/acc": "NaN"})
    make_job(name="without")

    page = reader(ada).get("/jobs?group=arg:lr&by=val/acc")

    found = page.context["groups"]
    assert [(one.title, one.count, one.mean, one.best_value) for one in found] == [
        ("0.001", 1, "0.75", "0.75"),
        ("0.0003", 3, "0.6", "0.7"),
        ("0.01", 1, "0.25", "0.25"),
        ("without arg", 1, "", ""),
    ]


@pytest.mark.parametrize("kind", ["array", "sweep", "tag", "owner", "state", "pool", "arg:lr"])
def test_a_group_opens_as_the_table_of_its_jobs(reader, table, ada, make_job, kind):
    array = JobArray.objects.create(count=2, created_at=timezone.now())
    for index in range(2):
        make_job(
            name=f"fit[{index}]",
            array=array,
            array_index=index,
            tags=["x", "y"],
            spec={"args": ["--lr", "1"]},
        )
    make_job(ada, name="alone", state=JobState.FAILED)

    groups = reader(ada).get(f"/jobs?group={kind}&sort=name").context["groups"]

    for group in groups:
        if group.address:
            assert len(table(group.address.lstrip("?"))) == group.count
            assert parse_qs(group.address.lstrip("?"))["sort"] == ["name"]
    assert sum(group.count for group in groups) == (5 if kind == "tag" else 3)


def test_an_argument_that_is_nan_makes_one_group(reader, ada, table, make_job):
    for _ in range(2):
        make_job(spec={"args": ["--clip", "NaN"]})

    [group] = reader(ada).get("/jobs?group=arg:clip").context["groups"]

    assert group.count == 2
    assert len(table(group.address.lstrip("?"))) == 2


def test_a_window_begins_anywhere_and_says_how_many_there_are(reader, table, ada, make_job):
    for number in range(9):
        make_job(name=f"job {number}")

    assert table("from=3&count=2", address="/jobs/rows") == ["job 5", "job 4"]
    behind = Job.objects.get(name="job 4").pk
    assert table(f"from=99&count=2&before={behind}", address="/jobs/rows") == ["job 3", "job 2"]
    assert table("sort=name&from=7&count=5", address="/jobs/rows") == ["job 7", "job 8"]
    assert reader(ada).get("/jobs/rows?q=job&from=50")["X-Total"] == "9"


def test_a_page_of_any_order_is_read_without_scripts(table, reader, ada, make_job):
    for number in range(60):
        make_job(name=f"job {number:02}")

    page = html_of(reader(ada).get("/jobs?sort=name"))
    older = re.search(r'href="\?([^"]+)" rel="next"', page)
    assert older
    assert table(older[1].replace("&amp;", "&"))[0] == "job 50"


def test_anothers_jobs_are_in_no_part_of_the_table(reader, table, bob, three):
    job = three[0]
    Job.objects.filter(pk=job.pk).update(metric_seq=1)

    assert table("", user=bob) == table("sort=arg:lr", user=bob, address="/jobs/rows") == []
    assert reader(bob).get(f"/jobs/curves?jobs={job.pk}").json() == {}
    assert reader(bob).get(f"/jobs/{job.pk}/peek").status_code == 404
    assert reader(bob).get("/jobs?group=arg:lr").context["groups"] == []
    assert "lr" not in reader(bob).get("/jobs").context["names"].arguments


def test_a_right_that_is_taken_closes_an_order_that_is_still_kept(table, bob, three):
    right = PoolRight.objects.create(user=bob, pool_id="default", right=Right.OPERATE)
    assert len(table("sort=arg:lr", user=bob, address="/jobs/rows")) == 3

    right.delete()

    assert table("sort=arg:lr", user=bob, address="/jobs/rows") == []


def test_a_curve_has_gaps_where_the_loss_is_no_number(home, make_job):
    job = make_job(last_values={"loss": 1.0})
    with MetricWriter(home.job(job.pk).metrics, 1, 1000.0, None) as writer:
        points = [1.0, 0.5, float("nan"), 0.25, 0.2]
        writer.append([Point("loss", step, 1000.0 + step, value) for step, value in enumerate(points)])
        job.metric_seq = writer.flush()["seq"]

    path = curves.path_of(job)

    assert path.count("M") == 2
    assert path.startswith("M0.0 1.5L24.0")
    assert "nan" not in path


def test_the_peek_says_what_the_row_has_no_room_for(reader, ada, three):
    page = html_of(reader(ada).get(f"/jobs/{three[0].pk}/peek"))

    assert "0.0003" in page
    assert 'data-edit="name"' in page


def test_a_view_is_for_all_and_goes_with_its_owner_or_an_admin(reader, ada, bob, root, three):
    reader(ada).post("/jobs/views", {"name": "best", "query": "?sort=-metric:val/acc&from=50&evil=1"})
    view = JobView.objects.get()
    assert parse_qs(view.query) == {"sort": ["-metric:val/acc"]}
    assert ">best<" in html_of(reader(bob).get("/jobs"))

    reader(bob).post("/jobs/views", {"name": "best", "query": "q=mine"})
    assert JobView.objects.get().owner == ada
    reader(ada).post("/jobs/views", {"name": "best", "query": "q=a"})
    assert JobView.objects.get().query == "q=a"

    assert reader(bob).post(f"/jobs/views/{view.pk}/remove").status_code == 403
    Person.objects.create(user=ada, role=Role.VIEWER)
    assert reader(ada).post(f"/jobs/views/{view.pk}/remove").status_code == 403
    reader(root).post(f"/jobs/views/{view.pk}/remove")
    assert not JobView.objects.exists()


@pytest.mark.parametrize(
    "query",
    [
        "group=arg:", "group=bogus",  "cols=,,,", "cols=arg:%22%5D,metric:%27--", "sort=arg:%22",
        "sweep=x", "array=x", "arg=lr", "arg=%22=1", "group=arg:lr&by=nothing", "from=-1", "sort=-owner&from=999999999999",
    ],
)  # fmt: skip
def test_an_address_that_means_nothing_is_answered_with_a_page(reader, ada, three, query):
    for address in ("/jobs", "/jobs/rows"):
        assert reader(ada).get(f"{address}?{query}").status_code == 200


def test_a_table_asks_the_database_as_often_for_many_rows_as_for_few(reader, ada, make_job):
    browser = reader(ada)

    def queries(count: int) -> int:
        for number in range(count):
            make_job(name=f"job {number}", tags=["x"], state=JobState.SUCCEEDED)
        with CaptureQueriesContext(connection) as asked:
            browser.get("/jobs?cols=state,owner,pool,array,sweep,tags,priority,devices")
        return len(asked)

    queries(1)  # what a process reads once
    assert queries(2) == queries(30)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning")
def test_the_table_is_sorted_peeked_and_chosen_as_a_whole_in_a_browser(open_page, ada, make_job):
    for number in range(120):
        make_job(name=f"job {number:03}", spec={"args": ["--lr", str(number)]})
    page = open_page(ada, "/jobs?cols=state,arg:lr")

    page.get_by_role("link", name="lr", exact=True).click()
    expect(page).to_have_url(re.compile("sort=-arg"))
    expect(page.locator("#jobs tr[data-job] th a").first).to_have_text("job 119")
    page.keyboard.press("j")
    page.keyboard.press("Space")
    expect(page.locator("#peek")).to_contain_text("job 119")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#peek")).to_contain_text("job 118")
    page.keyboard.press("Escape")
    expect(page.locator("#peek")).to_be_hidden()

    page.keyboard.press("s")
    expect(page.locator("#chosen-count")).to_have_text("1 chosen")
    page.get_by_role("button", name="All 1").click()
    page.get_by_label("Tag", exact=True).last.fill("paper")
    page.locator("#bulk").get_by_role("button", name="Add").click()
    page.keyboard.press("End")
    expect(page.locator("#jobs")).to_contain_text("job 000")
    expect(page.locator("#toasts")).to_contain_text("120 jobs changed", timeout=30_000)
    assert Job.objects.filter(tags=["paper"]).count() == 120
    settle(page)
