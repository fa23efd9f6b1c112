"""A state has one word for people everywhere; programs have its code."""

import re

import pytest
from django.urls import reverse

from orchestrator.models import JobState
from tests.dashboard.markup import html_of

# In the job's row; in the filter; in the cell of states; there and in the group's title.
TIMES = {"jobs": 1, "filter": 1, "groups": 1, "states": 2}


def shown(html: str) -> str:
    """The text of a page: without scripts, and without the attributes, which have codes."""
    return re.sub(r"<script.*?</script>|<[^>]*>", " ", html, flags=re.DOTALL)


def rows_of_groups(html: str) -> str:
    """The rows of the table of groups: what stands around them, as the filter, has the words of all states."""
    return html.partition('<table class="cards groups">')[2].partition("<tbody>")[2].partition("</tbody>")[0]


def rows_of_jobs(html: str) -> str:
    """The rows of the table of jobs, without the filter."""
    return " ".join(re.findall(r"<tr data-job=.*?</tr>", html, flags=re.DOTALL))


def filter_of_states(html: str) -> str:
    return html.partition('<select id="state"')[2].partition("</select>")[0]


PARTS = {
    "jobs": rows_of_jobs,
    "filter": filter_of_states,
    "groups": rows_of_groups,
    "states": rows_of_groups,
}


@pytest.mark.parametrize(("language", "word"), [("en", "timed out"), ("de", "Zeit um")])
@pytest.mark.parametrize(
    "place", ["jobs", "filter", "job", "report", "reports", "groups", "states", "compare"]
)
def test_a_job_that_timed_out_is_called_so_in_filters_titles_and_reports(
    reader, ada, make_job, place, language, word
):
    job, other = make_job(state=JobState.TIMED_OUT), make_job()
    addresses = {
        "jobs": reverse("jobs"),
        "filter": reverse("jobs"),
        "job": reverse("job", args=[job.pk]),
        "report": reverse("job-report", args=[job.pk]),
        "reports": f"{reverse('report-of')}?jobs={job.pk},{other.pk}",
        "groups": f"{reverse('jobs')}?group=owner",
        "states": f"{reverse('jobs')}?group=state",
        "compare": f"{reverse('compare')}?jobs={job.pk},{other.pk}",
    }
    browser = reader(ada)
    browser.cookies["berth_language"] = language

    html = html_of(browser.get(addresses[place]))
    text = shown(PARTS[place](html) if place in PARTS else html)

    assert word in text
    assert text.count(word) == TIMES.get(place, text.count(word))
    assert "timed_out" not in text
