"""Notes about jobs and projects, in Markdown."""

from datetime import datetime

from django.http import HttpResponse
from ninja import Query, Router
from pydantic import BaseModel, Field, StrictInt, StrictStr

from orchestrator.api.http.authentication import ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import Body
from orchestrator.api.resources.job_filters import find_job
from orchestrator.models import Job, Note
from orchestrator.people import audit
from orchestrator.sharing import notes, projects

router = Router()
jobs_router = Router()
projects_router = Router()


class NoteText(Body):
    text: StrictStr = Field(description="Markdown")


class NoteIn(NoteText):
    step: StrictInt | None = Field(None, ge=0, le=2**62, description="the step of the job that it is about")


class NoteOut(BaseModel):
    id: int
    author: str = Field(description="the user name of the person who wrote it")
    text: str = Field(description="Markdown, as it was written")
    html: str = Field(description="the text as HTML that may stand in a page")
    step: int | None = Field(description="the step of the job that it is about; null: the whole job")
    created_at: datetime
    changed_at: datetime | None = Field(description="null: it is as it was written")


@jobs_router.get("/{job_id}/notes", response=Page[NoteOut])
def list_job_notes(request: ApiRequest, job_id: str, paging: Query[Paging]) -> Page[NoteOut]:
    """Notes about a job, newest first."""
    job = find_job(Job.objects.all(), request.user, job_id)
    return page(Page[NoteOut], request, notes.of_job(job), paging, show=show_note)


@jobs_router.post("/{job_id}/notes", response={201: NoteOut})
def note_job(request: ApiRequest, job_id: str, body: NoteIn) -> NoteOut:
    """Write a note about a job or a step of it; everybody who sees the job reads it."""
    job = find_job(Job.objects.all(), request.user, job_id)
    return show_note(notes.write(request.user, job, body.text, step=body.step))


@projects_router.get("/{name}/notes", response=Page[NoteOut])
def list_project_notes(request: ApiRequest, name: str, paging: Query[Paging]) -> Page[NoteOut]:
    """Notes about a project, newest first."""
    found = notes.of_project(projects.find(request.user, name))
    return page(Page[NoteOut], request, found, paging, show=show_note)


@projects_router.post("/{name}/notes", response={201: NoteOut})
def note_project(request: ApiRequest, name: str, body: NoteText) -> NoteOut:
    """Write a note about a project; its members read it."""
    return show_note(notes.write(request.user, projects.find(request.user, name), body.text))


@router.patch("/{int:note_id}", response=NoteOut)
def change_note(request: ApiRequest, note_id: int, body: NoteText) -> NoteOut:
    """Replace the text of one's own note."""
    return show_note(notes.change(request.user, notes.visible(request.user, note_id), body.text))


@router.delete("/{int:note_id}", response={204: None})
def remove_note(request: ApiRequest, note_id: int) -> HttpResponse:
    """Delete a note: for its author, and for those who may act on what it is about."""
    note = notes.visible(request.user, note_id)
    notes.remove(request.user, note, address=audit.address_of(request))
    return HttpResponse(status=204)


def show_note(note: Note) -> NoteOut:
    return NoteOut(
        id=note.pk,
        author=note.author.get_username(),
        text=note.text,
        html=notes.as_html(note.text),
        step=note.step,
        created_at=note.created_at,
        changed_at=note.changed_at,
    )
