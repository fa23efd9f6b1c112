"""What can be done from a job's page and the account page."""

import re

import pytest
from django.urls import reverse

from orchestrator.models import Job, JobState, Token
from orchestrator.people import tokens
from orchestrator.store.checkpoints.outside import OutsideCheckpoint, write_unkept
from tests.dashboard.markup import html_of


def test_cancelling_a_queued_job_ends_it(reader, ada, make_job):
    job = make_job()

    answer = reader(ada).post(reverse("job-act", args=[job.pk, "cancel"]))

    job.refresh_from_db()
    assert answer["Location"] == reverse("job", args=[job.pk])
    assert job.state == JobState.CANCELLED


def test_a_script_gets_the_words_as_json(reader, ada, make_job):
    job = make_job()

    answer = reader(ada).post(
        reverse("job-act", args=[job.pk, "hold"]), headers={"X-Requested-With": "fetch"}
    )

    assert answer.json() == {"detail": "Held; it starts after you release it."}
    job.refresh_from_db()
    assert job.state == JobState.HELD


def test_what_is_not_legal_is_refused_with_a_sentence(reader, ada, make_job):
    job = make_job(state=JobState.SUCCEEDED)
    browser = reader(ada)
    address = reverse("job-act", args=[job.pk, "hold"])

    assert browser.post(address, headers={"X-Requested-With": "fetch"}).status_code == 409
    page = html_of(browser.post(address, follow=True))
    assert 'class="band is-bad"' in page


def test_only_known_actions_and_only_by_post(reader, ada, make_job):
    job = make_job()

    assert reader(ada).post(reverse("job-act", args=[job.pk, "destroy"])).status_code == 404
    assert reader(ada).get(reverse("job-act", args=[job.pk, "cancel"])).status_code == 405


def test_run_again_makes_a_new_job_and_opens_it(reader, ada, make_job, make_device, store_script):
    make_device(0)
    job = make_job(state=JobState.FAILED, bundle=store_script())

    answer = reader(ada).post(reverse("job-act", args=[job.pk, "retry"]))

    made = Job.objects.exclude(pk=job.pk).get()
    assert made.parent == job
    assert answer["Location"] == reverse("job", args=[made.pk])


@pytest.mark.parametrize(
    ("state", "offered"),
    [
        (JobState.QUEUED, {"hold", "cancel"}),
        (JobState.HELD, {"release", "cancel"}),
        (JobState.RUNNING, {"checkpoint", "profile", "cancel"}),
        (JobState.SUCCEEDED, {"retry"}),
    ],
)
def test_a_page_offers_what_is_legal_in_the_state(reader, ada, make_job, state, offered):
    html = html_of(reader(ada).get(reverse("job", args=[make_job(state=state).pk])))

    assert set(re.findall(r'data-action="(\w+)"', html)) == offered


def test_one_click_keeps_what_a_job_writes_elsewhere_from_now_on(reader, ada, bob, make_attempt, home):
    job = make_attempt(state=JobState.RUNNING).job
    home.job(job.pk).root.mkdir(parents=True, exist_ok=True)
    write_unkept(home.job(job.pk), [OutsideCheckpoint("out/*.pt", "out/ckpt.pt", 15)])
    browser, address = reader(ada), reverse("job", args=[job.pk])
    html = html_of(browser.get(address))
    assert "was written 15 times outside the checkpoint folder and is not kept" in html
    act = reverse("job-act", args=[job.pk, "keep-files"])
    assert f'action="{act}"' in html

    assert reader(bob).post(act, {"glob": "out/*.pt"}).status_code == 404
    browser.post(act, {"glob": "out/*.pt"})

    job.refresh_from_db()
    assert job.spec_fields["checkpoint_glob"] == "out/*.pt"
    assert "is not kept" not in html_of(browser.get(address))


def test_a_token_is_shown_once_and_works(reader, ada):
    browser = reader(ada)

    answer = browser.post(reverse("token-create"), {"name": "laptop", "scope": "read", "expires": "30"})

    found = re.search(r'<code id="new-token">([^<]+)</code>', html_of(answer))
    assert found
    token = tokens.authenticate(found[1])
    assert token is not None
    assert (token.user, token.scope, token.name) == (ada, "read", "laptop")
    assert answer["Cache-Control"] == "no-store"
    assert found[1] not in html_of(browser.get(reverse("account")))


def test_a_revoked_token_works_no_more(reader, ada):
    token, text = tokens.issue(ada, name="laptop")

    reader(ada).post(reverse("token-revoke", args=[token.pk]))

    assert tokens.authenticate(text) is None


def test_nobody_revokes_anothers_token(reader, ada, bob):
    token, text = tokens.issue(ada, name="laptop")

    assert reader(bob).post(reverse("token-revoke", args=[token.pk])).status_code == 404
    assert tokens.authenticate(text) is not None


def test_a_member_cannot_make_an_admins_token(reader, ada):
    answer = reader(ada).post(reverse("token-create"), {"name": "x", "scope": "admin", "expires": ""})

    assert answer.status_code == 403
    assert "Choose a smaller one" in html_of(answer)
    assert not Token.objects.exists()


def test_a_theme_is_kept_in_a_cookie_and_set_by_the_server(reader, ada):
    browser = reader(ada)

    browser.post(reverse("theme"), {"theme": "dark"})
    assert '<html lang="en" data-theme="dark"' in html_of(browser.get(reverse("overview")))
    browser.post(reverse("theme"), {"theme": '"><script>'})
    assert "data-theme" not in html_of(browser.get(reverse("overview"))).split("<body")[0]


def test_a_form_or_an_address_with_a_nul_character_is_refused_with_its_field(reader, ada):
    browser = reader(ada)

    form = browser.post(reverse("token-create"), {"name": "a\0b"})
    address = browser.get("/jobs?q=a%00b")

    assert (form.status_code, address.status_code) == (400, 400)
    assert "name: has a NUL character at place 2" in html_of(form)
    assert not Token.objects.exists()


def test_query_of_an_address_is_shown_to_the_owner_alone(reader, ada, root, make_job):
    """A presigned address is a password."""
    named = "shard=https://data.lab.org/a.bin?X-Signature=tellnobody#sha256=" + "0" * 64
    job = make_job(spec={"datasets": [named]}, bundle="0" * 64)
    pages = [
        reverse("job", args=[job.pk]),
        f"{reverse('submit')}?from={job.pk}",
        f"{reverse('sweep-new')}?from={job.pk}",
        f"{reverse('compare')}?jobs={job.short_id},{job.short_id}",
        f"/api/v1/jobs/{job.pk}",
        "/api/v1/jobs",
    ]
    told = {user: [reader(user).get(page).content.decode() for page in pages] for user in (ada, root)}

    assert not [page for page, text in zip(pages, told[root], strict=True) if "tellnobody" in text]
    assert all("data.lab.org/a.bin" in text for text in (told[root][0], told[root][1], told[root][4]))
    assert all("tellnobody" in text for text in (told[ada][0], told[ada][1], told[ada][4]))
