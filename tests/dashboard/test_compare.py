"""Jobs beside each other: what differs, against which baseline, and whose jobs may be looked at."""

import pytest
from django.urls import reverse
from django.utils import timezone

from dashboard.pages import compare as compare_page
from dashboard.parts.comparison import Row, compare
from orchestrator.models import Environment, Job, JobArray, JobState
from tests.dashboard.markup import html_of


@pytest.fixture
def rows(ada):
    def by_name(*jobs, baseline: int = 0, attempts=None, reader=None) -> dict[str, Row]:
        found = compare(
            jobs,
            attempts or {},
            baseline=baseline,
            reader_id=(reader or ada).pk,
            now=timezone.now(),
        )
        return {row.name: row for row in found}

    return by_name


def test_arguments_and_losses_stand_beside_each_other(make_job, rows):
    one = make_job(spec={"args": ["--lr", "3e-4"]}, last_values={"loss": 2.0})
    two = make_job(spec={"args": ["--lr", "1e-3", "--amp"]}, last_values={"loss": 2.5})

    found = rows(one, two)

    assert [cell.text for cell in found["lr"].cells] == ["3e-4", "1e-3"]
    assert [cell.text for cell in found["amp"].cells] == ["", "yes"]
    assert [(cell.text, cell.change) for cell in found["loss"].cells] == [("2", ""), ("2.5", "+25 %")]
    assert found["loss"].note == "lower is better"


def test_commits_are_compared(make_job, rows):
    commit = "9fceb02d0ae598e95dc970b74767f19372d61af8"
    one = make_job(spec={"git": {"commit": commit, "branch": "main", "dirty": True}})
    two = make_job(spec={"git": {"commit": commit}})

    texts = [cell.text for cell in rows(one, two)["git"].cells]

    assert texts == ["9fceb02d0ae5 on main, with changes", "9fceb02d0ae5"]


def test_resolved_packages_are_compared_where_they_differ(make_job, rows):
    def of(**versions: str) -> Environment:
        packages = [{"name": name, "version": version} for name, version in versions.items()]
        return Environment.objects.create(
            request={}, origin="--with", packages=packages, created_at=timezone.now()
        )

    found = rows(
        make_job(environment=of(tinylib="1.0", same="3")),
        make_job(environment=of(tinylib="2.0", same="3")),
        make_job(),
    )

    assert [cell.text for cell in found["package tinylib"].cells] == ["1.0", "2.0", ""]
    same = rows(make_job(environment=of(same="3")), make_job(environment=of(same="3")))
    assert not [name for name in same if name.startswith("package ")]


def test_what_is_the_same_does_not_differ(make_job, rows):
    found = rows(make_job(), make_job())

    assert not found["gpus"].differs
    assert found["gpus"].cells[1].same


def test_changes_are_told_against_the_chosen_baseline(make_job, rows):
    jobs = [make_job(last_values={"loss": loss}) for loss in (1.0, 2.0, 50.0)]

    assert [cell.change for cell in rows(*jobs, baseline=1)["loss"].cells] == ["-50 %", "", "25 times"]


def test_a_last_value_that_is_no_number_is_said_as_it_was_recorded(make_job, rows):
    broken = make_job()
    broken.last_values = {"loss": float("nan")}

    found = rows(broken, make_job(last_values={"loss": 1.0}))

    assert [cell.text for cell in found["loss"].cells] == ["NaN", "1"]


def test_queries_of_addresses_are_the_owners_alone(make_job, rows, root):
    job = make_job(spec={"args": ["--from", "https://store.example/a?key=secret"]})

    assert "secret" in str([row.cells[0].text for row in rows(job).values()])
    assert "secret" not in str([row.cells[0].text for row in rows(job, reader=root).values()])


def test_the_environment_is_the_owners_alone(make_job, rows, root):
    job = make_job(spec={"env": {"WHERE": "here"}})

    assert rows(job)["env WHERE"].cells[0].text == "here"
    assert rows(job, reader=root)["env WHERE"].cells[0].text == "…"


def test_the_page_shows_the_jobs_of_the_address_in_its_order(reader, ada, make_job):
    one, two = make_job(name="first"), make_job(name="second")

    page = html_of(reader(ada).get(reverse("compare"), {"jobs": f"{two.short_id},{one.pk}"}))

    assert page.index(">second<") < page.index(">first<")


def test_a_job_of_somebody_else_is_one_that_is_not_there(reader, bob, make_job):
    job = make_job(name="private")

    page = html_of(reader(bob).get(reverse("compare"), {"jobs": str(job.pk)}))

    assert "private" not in page
    assert "No job of yours is called" in page


def test_a_job_is_added_by_its_name_the_newest_of_them(reader, ada, make_job):
    known, _older, newer = make_job(name="base"), make_job(name="vit"), make_job(name="vit")

    answer = reader(ada).get(reverse("compare"), {"jobs": known.short_id, "add": "vit", "x": "time"})

    assert answer["Location"] == f"/compare?jobs={known.short_id},{newer.short_id}&x=time"


@pytest.mark.parametrize(
    "wanted", [{}, {"jobs": ",,,"}, {"jobs": "nothing'; --"}, {"x": "z", "smooth": "much"}, {"add": "\u202e"}]
)
def test_b43_an_address_that_means_nothing_is_answered_with_a_page(reader, ada, wanted):
    assert reader(ada).get(reverse("compare"), wanted).status_code == 200


def test_a_state_is_a_row_that_differs(make_job, rows):
    found = rows(make_job(), make_job(state=JobState.SUCCEEDED))

    assert [cell.text for cell in found["state"].cells] == ["queued", "succeeded"]


@pytest.fixture
def make_array(make_job):
    """Jobs of one array, a succeeded one for each loss; each (index, loss) gives the next."""

    def make(*members: tuple[int, float | None]) -> list[Job]:
        array = JobArray.objects.create(count=len(members), created_at=timezone.now())
        return [
            make_job(
                array=array,
                array_index=index,
                state=JobState.RUNNING if loss is None else JobState.SUCCEEDED,
                last_values={"train/loss": 9.0 if loss is None else loss},
            )
            for index, loss in members
        ]

    return make


def test_the_spread_is_that_of_the_ended_members_of_an_array(make_array, make_job, rows):
    member, *_ = make_array((0, 2.0), (1, 2.1), (2, 2.2), (3, None))

    found = rows(member, make_job())["spread"]

    assert [cell.text for cell in found.cells] == ["2.1 ± 0.1 over 3 runs", "1 run, no spread"]
    assert found.differs


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([(0, None), (1, None)], "0 runs of its array ended, no spread"),
        (
            [(0, 2.0), (0, 2.5), (1, None)],
            "1 run of its array ended, no spread",
        ),  # run again: the same member
    ],
)
def test_one_ended_member_has_no_spread(make_array, rows, members, said):
    assert rows(make_array(*members)[0])["spread"].cells[0].text == said


def test_the_best_value_is_marked_where_its_name_says_which_way_is_better(make_job, rows):
    numbers = [{"val/acc": 0.5, "loss": 2.0, "x": 1.0}, {"val/acc": 0.75, "loss": float("nan"), "x": 2.0}, {}]
    jobs = [make_job() for _ in numbers]
    for job, values in zip(jobs, numbers, strict=True):
        job.last_values = values

    found = rows(*jobs)

    assert [cell.best for cell in found["val/acc"].cells] == [False, True, False]
    assert not any(cell.best for name in ("loss", "x") for cell in found[name].cells)
    assert found["val/acc"].note == "higher is better"


def test_jobs_are_sorted_by_any_row_and_those_without_a_value_come_last(reader, ada, make_job):
    jobs = [
        make_job(name=name, spec={"args": ["--lr", lr]}, last_values=values)
        for name, lr, values in (("b", "0.01", {"loss": 2.0}), ("c", "3e-4", {}), ("a", "0.1", {"loss": 1.0}))
    ]
    ids = ",".join(job.short_id for job in jobs)

    def order(by: str) -> str:
        columns = reader(ada).get("/compare", {"jobs": ids, "sort": by}).context["columns"]
        return "".join(column["job"].name for column in columns)

    assert [order(by) for by in ("loss", "-loss", "lr", "-lr", "bogus")] == [
        "abc",
        "bac",
        "cba",
        "abc",
        "bca",
    ]
    page = reader(ada).get("/compare", {"jobs": ids, "sort": "loss"})
    assert [column["letter"] for column in page.context["columns"]] == ["C", "A", "B"]
    assert page.context["jobs"] == ids


def test_jobs_keep_their_own_colours_and_one_that_shares_gets_a_free_one(make_job):
    jobs = [make_job(colour=colour) for colour in (3, 3, None, 11)]

    assert compare_page.colour_slots(jobs) == [4, 1, 2, 3]
    assert compare_page.colour_slots([make_job() for _ in range(9)])[-1] is None


def test_lines_are_named_and_jobs_of_one_name_told_apart(reader, ada, make_job):
    one, two = (make_job(name="fit", spec={"args": ["--lr", lr, "--seed", "1"]}) for lr in ("0.1", "0.2"))
    other = make_job(name="x" * 200)

    page = reader(ada).get("/compare", {"jobs": ",".join(job.short_id for job in (one, two, other))})

    labels = [column["label"] for column in page.context["columns"]]
    assert labels[:2] == ["fit lr 0.1, seed 1", "fit lr 0.2, seed 1"]
    assert len(labels[2]) == 28


def test_numbers_that_differ_are_drawn_against_each_other_and_on_parallel_axes(reader, ada, make_job):
    jobs = [
        make_job(spec={"args": ["--lr", str(lr)]}, last_values={"loss": loss})
        for lr, loss in ((0.1, 1.0), (0.001, 3.0), (0.01, "NaN"))
    ]

    page = reader(ada).get("/compare", {"jobs": ",".join(job.short_id for job in jobs)})

    assert page.context["quantities"] == ["lr", "last loss"]
    assert (page.context["across"], page.context["up"]) == ("lr", "last loss")
    assert [dot.job for dot in page.context["scatter"].dots] == [0, 1]
    assert page.context["scatter"].x.places == [1.0, 0.0, 0.5]  # by its logarithm: it spans two decades
    assert [path.count("L") for path in page.context["parallel"].lines] == [1, 1, 0]


def test_the_code_and_packages_of_two_jobs_are_compared(reader, ada, bob, home, make_job, store_script):
    def environment(**versions: str) -> Environment:
        packages = [{"name": name, "version": version} for name, version in versions.items()]
        return Environment.objects.create(
            request={}, origin="--with", packages=packages, created_at=timezone.now()
        )

    old = make_job(bundle=store_script(b"lr = 1\nrun()\n"), environment=environment(torch="2.5", same="1"))
    new = make_job(
        bundle=store_script(b"lr = 2\nrun('<b>')\n"), environment=environment(torch="2.6", same="1")
    )
    address = reverse("compare-code") + f"?jobs={old.short_id},{new.short_id}"

    page = html_of(reader(ada).get(address))

    for line in ("-lr = 1", "+lr = 2", "run(&#x27;&lt;b&gt;&#x27;)", "2.5", "2.6"):
        assert line in page
    assert ">same<" not in page
    assert reader(bob).get(address).status_code == 404
    assert reader(ada).get(reverse("compare-code")).status_code == 404
    assert address.replace("&", "&amp;") in html_of(
        reader(ada).get(reverse("compare"), {"jobs": f"{old.short_id},{new.short_id}"})
    )


def test_code_that_is_not_kept_is_said(reader, ada, make_job):
    one, two = make_job(), make_job(bundle="1" * 64)

    page = html_of(reader(ada).get(reverse("compare-code"), {"jobs": f"{one.pk},{two.pk}"}))

    assert "The code of one of these jobs is not kept here." in page
