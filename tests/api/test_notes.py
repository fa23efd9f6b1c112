"""Notes in Markdown: read by those who see the job, changed by their author, harmless in a page."""

import pytest

from orchestrator.models import MemberRole, Note
from orchestrator.sharing import notes, projects


@pytest.fixture
def shared(make_job, ada, bob):
    made = projects.create(ada, "paper-x")
    projects.set_member(ada, made, "bob", MemberRole.MEMBER)
    return make_job(ada, project=made, visibility="project")


def test_a_member_notes_a_step_and_its_author_alone_changes_it(shared, client_of, ada, bob):
    written = client_of(bob).send("POST", f"/jobs/{shared.pk}/notes", {"text": "**too** hot", "step": 1200})

    assert written.status_code == 201
    assert (written.json()["author"], written.json()["step"]) == ("bob", 1200)
    assert "<strong>too</strong>" in written.json()["html"]
    address = f"/notes/{written.json()['id']}"
    assert client_of(ada).send("PATCH", address, {"text": "no"}).status_code == 403
    assert client_of(bob).send("PATCH", address, {"text": "cooler"}).json()["changed_at"]
    listed = client_of(ada).send("GET", f"/jobs/{shared.pk}/notes").json()["results"]
    assert [each["text"] for each in listed] == ["cooler"]
    assert client_of(ada).send("DELETE", address).status_code == 204  # the job is hers


def test_strangers_find_neither_notes_nor_a_way_to_write(make_job, client_of, ada, bob):
    job = make_job(ada)
    note = notes.write(ada, job, "mine")

    assert client_of(bob).send("GET", f"/jobs/{job.pk}/notes").status_code == 404
    assert client_of(bob).send("POST", f"/jobs/{job.pk}/notes", {"text": "x"}).status_code == 404
    assert client_of(bob).send("DELETE", f"/notes/{note.pk}").status_code == 404
    assert client_of(bob).send("PATCH", f"/notes/{note.pk}", {"text": "x"}).status_code == 404
    assert Note.objects.get().text == "mine"


def test_a_project_has_notes_without_steps(shared, client_of, bob):
    client = client_of(bob)

    assert client.send("POST", "/projects/paper-x/notes", {"text": "done"}).status_code == 201
    assert client.send("POST", "/projects/paper-x/notes", {"text": "x", "step": 1}).status_code == 400
    assert client.send("GET", "/projects/paper-x/notes").json()["results"][0]["text"] == "done"


@pytest.mark.parametrize("text", ["", "  \n", "x" * 20_001])
def test_an_empty_or_endless_note_is_refused(text, shared, client_of, ada):
    assert client_of(ada).send("POST", f"/jobs/{shared.pk}/notes", {"text": text}).status_code == 400


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[a](javascript:alert(1))",
        "[a](data:text/html;base64,PHNjcmlwdD4=)",
        "![a](https://elsewhere.example/pixel.png)",
        '[a](https://x.example "onmouseover=alert(1)")',
        "<style>body{display:none}</style>",
        "[a]: javascript:alert(1)\n\n[a]",
    ],
)
def test_a_note_brings_no_script_picture_or_style_into_a_page(text):
    html = notes.as_html(text)

    for mark in (
        "<script",
        "<img",
        "<style",
        'href="javascript',
        'href="data',
        " onmouseover=alert",
        " onerror=alert(1)>",
    ):
        assert mark not in html.replace("&gt;", ">") or "&lt;" in html, html


def test_headings_of_a_note_stand_below_those_of_the_page():
    html = notes.as_html("# Result\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n~~old~~ [x](https://x.example)")

    assert "<h4>Result</h4>" in html
    assert "<td>1</td>" in html
    assert 'rel="nofollow noopener noreferrer"' in html
