"""The table of jobs with 100,000 of them: how soon it stands, and what a frame costs while one scrolls."""

from typing import Any

from playwright.sync_api import Page

from benchmarks.browsing import Visitor
from benchmarks.figures import Figure, Outcome
from benchmarks.server import Server
from benchmarks.stats import median, percentile, spread

FIGURES = (
    Figure("jobs_100k_open_ms", "ms", "the table of 100,000 jobs: from the click to its rows, median of 5", target=400),
    Figure("jobs_scroll_p95_ms", "ms", "a frame while one scrolls through them with a wheel: its cost, 95 %", target=16),
    Figure("jobs_sort_100k_ms", "ms", "the same table sorted by an argument, which no index has, median of 5"),
)  # fmt: skip
JOBS = 100_000
ROUNDS = 5
TURNS = 400
TURN_PX = 40
FILL = f"""
from datetime import timedelta
from django.contrib.auth import get_user_model
from django.utils import timezone
from orchestrator.models import Job, JobState, Pool
from orchestrator.spec.job_spec import JobSpec
owner = get_user_model().objects.get(username="admin")
pool, now = Pool.objects.first(), timezone.now()
for first in range(0, {JOBS}, 2000):
    jobs = []
    for number in range(first, first + 2000):
        lr = 10 ** -(1 + number % 5)
        spec = JobSpec.model_validate({{"args": ["--lr", str(lr), "--seed", str(number % 7)]}})
        at = now - timedelta(minutes={JOBS} - number)
        jobs.append(Job(owner=owner, pool=pool, name=f"job {{number % 977}}", spec_fields=spec.model_dump(mode="json"),
            arguments={{"lr": lr, "seed": number % 7}}, bundle="0" * 64, state=JobState.SUCCEEDED, event_count=1,
            submitted_at=at, queued_at=at, first_started_at=at, ended_at=at + timedelta(hours=1), step=100,
            total_steps=100, last_values={{"train/loss": number % 1009 / 100}}))
    Job.objects.bulk_create(jobs, 500)
"""
# What the main thread does in each frame, from its callbacks to what follows its paint.
WATCH_FRAMES = """() => {
  globalThis.frames_ms = [];
  const frame = () => {
    const began = performance.now();
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => frames_ms.push(performance.now() - began);
    port2.postMessage(0);
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}"""


def measure_tables(outcome: Outcome, visitor: Visitor, server: Server) -> None:
    server.manage("shell", "-c", FILL)
    with visitor.context() as context:
        page = context.new_page()
        opened = [_open_ms(page, f"{visitor.url}/jobs") for _ in range(ROUNDS)]
        frames = _frames_ms(page)
        sorted_ms = [
            _open_ms(page, f"{visitor.url}/jobs?cols=arg:lr&sort={sign}arg:lr") for sign in ("", "-", "") * 2
        ]
    outcome.figures["jobs_100k_open_ms"] = median(opened)
    outcome.figures["jobs_scroll_p95_ms"] = percentile(frames, 95)
    outcome.figures["jobs_sort_100k_ms"] = median(sorted_ms[:ROUNDS])
    outcome.details["jobs_100k_open_ms"] = spread(opened)
    outcome.details["jobs_scroll_ms"] = spread(frames, 1)
    outcome.details["jobs_sort_100k_ms"] = spread(sorted_ms)


def _open_ms(page: Page, address: str) -> float:
    """From the navigation's start to the first rows, as they are painted."""
    page.goto("about:blank")
    page.goto(address, wait_until="commit")
    page.locator("#jobs tr[data-job]").first.wait_for()
    found: Any = page.evaluate(
        "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"
    )
    return float(found)


def _frames_ms(page: Page) -> list[float]:
    page.wait_for_timeout(1_000)
    page.mouse.move(600, 500)
    page.evaluate(WATCH_FRAMES)
    for _ in range(TURNS):
        page.mouse.wheel(0, TURN_PX)
        page.wait_for_timeout(16)
    found: list[float] = page.evaluate("frames_ms")
    if page.evaluate("scrollY") < TURNS * TURN_PX / 2:
        raise RuntimeError("The table did not scroll.")
    return found
