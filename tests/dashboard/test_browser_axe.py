"""Every page against the rules of WCAG 2.2 A and AA, in both themes, on a screen and a phone, empty and full.

One load a page: its window is resized and its theme changed in place, and the rules are loaded once.
"""

from collections.abc import Iterator, Mapping

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import Page, expect

from orchestrator.models import Dataset, DatasetRoot, JobEvent, JobState, PoolRight, Quota, Right
from orchestrator.people import accounts, invitations
from orchestrator.store.metrics.writer import MetricWriter, Point
from tests.dashboard.conftest import settle
from tests.dashboard.full_federations import fill_federations, site_jobs
from tests.dashboard.full_models import fill_models

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]
RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]},
    "resultTypes": ["violations"],
}
# The rules among them that look at colours: what another theme can break.
COLOUR_RULES = {**RULES, "runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
REDRAWN_MS = 1500  # charts follow a theme within a second
SCREEN, PHONE = 1440, 390
ADDRESSES = (
    "/",
    "/?line=2 h, memory",
    "/queue",
    "/jobs",
    "/submit",
    "/compare",
    "/datasets",
    "/models",
    "/environments",
    "/benchmarks",
    "/jobs/grid",
    "/sweeps",
    "/services",
    "/new-service",
    "/federated",
    "/sessions",
    "/sweeps/new",
    "/pools",
    "/bookings",
    "/projects",
    "/share",
    "/notices",
    "/usage",
    "/audit",
    "/people",
    "/server",
    "/account",
    "/account/second-factor",
    "/people/of/root",
    "/keys",
)  # the page of the REST API is Swagger's own: it nests controls, whatever we set around it


def violations(page: Page, rules: Mapping[str, object] = RULES) -> list[str]:
    """Each as a line: the rule, what it says, and where."""
    if not page.evaluate("'axe' in globalThis"):
        page.evaluate(AXE_SCRIPT)
    found = page.evaluate("rules => axe.run(rules).then(({ violations }) => violations)", rules)
    return [
        f"{each['id']}: {each['help']}: {[node['target'] for node in each['nodes'][:3]]}" for each in found
    ]


def in_both_themes(page: Page) -> Iterator[str]:
    yield from violations(page)
    page.emulate_media(color_scheme="dark")
    if violations(page, COLOUR_RULES):
        page.wait_for_timeout(REDRAWN_MS)
        yield from (f"dark: {line}" for line in violations(page, COLOUR_RULES))
    page.emulate_media(color_scheme="light")


@pytest.fixture
def fill(home, root, ada, make_attempt, make_job, make_pool, write_readings):
    """Jobs in many states, numbers, a log, data, rights and limits; returns the addresses of things."""
    attempt = make_attempt(state=JobState.RUNNING, name="tiny-gpt", owner=root, tags=["paper"])
    job = attempt.job
    writer = MetricWriter(home.job(job.pk).metrics, 1, 1000.0, None)
    writer.append([Point("train/loss", step, 1000.0 + step, 3.0 / (step + 1)) for step in range(50)])
    job.metric_seq, job.step, job.total_steps = writer.flush()["seq"], 50, 100
    job.last_values = {"train/loss": 0.5}
    job.save()
    writer.close()
    path = home.job(job.pk).attempt(1).log(0)
    path.parent.mkdir(parents=True)
    path.write_text("step 1 loss 3\n\x1b[31mred\x1b[0m\n")
    make_job(name="waits", owner=root)
    make_job(name="held", state=JobState.HELD, owner=root)
    failed = make_job(name="failed", state=JobState.FAILED, ended_at=timezone.now(), owner=root)
    JobEvent.objects.create(
        job=failed,
        number=2,
        at=timezone.now(),
        from_state="running",
        to_state="failed",
        kind="told",
        data={"sentence": "It ended."},
    )
    device = attempt.leases.get().device_id
    holder = {"job": str(job.pk), "name": "tiny-gpt", "owner": "root", "rank": 0, "colour": 0}
    write_readings(device, **{device.replace("-", "_"): {"holders": [holder], "utilization_percent": 50}})
    folder = DatasetRoot.objects.create(name="data", path=str(home.root))
    Dataset.objects.create(name="words", root=folder, path="words.txt", owner=ada)
    PoolRight.objects.create(pool=make_pool("lab"), user=ada, right=Right.SUBMIT)
    Quota.objects.create(user=ada, max_devices=2)
    accounts.let_wait(User.objects.create_user("newcomer"))
    invitations.invite(root, note="Ana")
    work = home.job(job.pk).work
    work.mkdir(parents=True)
    (work / "scores.csv").write_text("epoch,loss\n1,0.5\n")
    fill_federations(home, root, job.pool, site_jobs(make_job, root))
    return [
        f"/jobs/{job.pk}",
        f"/jobs/{job.pk}/file?path=scores.csv",
        f"/jobs/{failed.pk}",
        f"/compare?jobs={job.pk},{failed.pk}",
        f"/devices/{device}",
        "/usage/what-if",
        *fill_models(home, root, job, attempt.leases.get().device.pool),
    ]


def check(page: Page, base: str, addresses: list[str], *, on_phone: bool) -> list[str]:
    found = []
    for address in addresses:
        page.set_viewport_size({"width": SCREEN, "height": 900})
        page.goto(base + address)
        settle(page)
        found += [f"{address}: {line}" for line in in_both_themes(page)]
        if not on_phone:
            continue
        page.set_viewport_size({"width": PHONE, "height": 900})
        found += [f"{address} on a phone: {line}" for line in violations(page)]
    return found


def test_no_page_breaks_a_rule_when_empty(server, open_page, root):
    page = open_page(root, "/account", color_scheme="light")

    assert check(page, server.url, [*ADDRESSES], on_phone=False) == []


def test_no_page_breaks_a_rule_when_full(server, open_page, root, fill):
    page = open_page(root, "/account", color_scheme="light")

    assert check(page, server.url, [*ADDRESSES, *fill], on_phone=True) == []

    page.get_by_role("button", name="More", exact=True).click()
    assert violations(page) == []


def test_no_dialog_or_menu_breaks_a_rule(server, open_page, root, fill):
    page = open_page(root, "/jobs", color_scheme="light")
    page.locator("[data-choose]").first.check()
    page.locator("#palette-open").click()
    page.get_by_role("dialog").wait_for()
    settle(page)
    assert [*in_both_themes(page)] == []
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    assert [*in_both_themes(page)] == []

    page.goto(server.url + fill[0])
    figure = page.locator("#charts figure").first
    expect(figure.locator(".chart-svg path").first).to_be_attached()
    settle(page)
    figure.locator("summary").click()
    figure.get_by_role("button", name="PNG picture").wait_for()
    assert [*in_both_themes(page)] == []
    page.keyboard.press("Escape")
    figure.focus()
    page.keyboard.press("t")
    page.get_by_role("dialog", name="Values of train/loss").wait_for()
    assert [*in_both_themes(page)] == []
