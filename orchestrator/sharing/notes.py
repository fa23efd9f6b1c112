"""Notes about jobs and projects, in Markdown."""

from functools import cache
from typing import TYPE_CHECKING

from django.contrib.auth.models import AbstractBaseUser, User
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from orchestrator.exceptions import Conflict, Forbidden, Malformed, NotFound, Sentence
from orchestrator.models import Job, Note, Project
from orchestrator.people import audit, rights
from orchestrator.sharing import projects

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

MOST_LETTERS = 20_000
MOST_NOTES = 1_000  # of one job or project
FIRST_HEADING = 4  # a note's headings stand below the page's
_TAGS = frozenset(
    [
        "a",
        "b",
        "blockquote",
        "br",
        "code",
        "del",
        "em",
        "h4",
        "h5",
        "h6",
        "hr",
        "li",
        "ol",
        "p",
        "pre",
        "s",
        "strong",
        "table",
        "tbody",
        "td",
        "th",
        "thead",
        "tr",
        "ul",
    ]
)
_SCHEMES = frozenset({"http", "https", "mailto"})


def as_html(text: str) -> str:
    """Render Markdown as HTML that may stand in a page: no HTML of the author, no pictures, no styles."""
    import nh3

    html = _parser().render(text)
    cleaned: str = nh3.clean(
        html,
        tags=set(_TAGS),
        attributes={"a": {"href", "title"}, "ol": {"start"}},
        url_schemes=set(_SCHEMES),
        link_rel="nofollow noopener noreferrer",
    )
    return cleaned


@cache
def _parser() -> "MarkdownIt":
    """Built at the first note: the imports cost 55 ms of CPU."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True})
    return parser.enable(["table", "strikethrough"]).use(_lower_headings)


def _lower_headings(parser: "MarkdownIt") -> None:
    def lower(state: object) -> None:
        for token in getattr(state, "tokens", ()):
            if token.type in {"heading_open", "heading_close"}:
                token.tag = f"h{min(6, int(token.tag[1]) + FIRST_HEADING - 1)}"

    parser.core.ruler.push("lower_headings", lower)


def of_job(job: Job) -> QuerySet[Note]:
    return Note.objects.filter(job=job).select_related("author")


def of_project(project: Project) -> QuerySet[Note]:
    return Note.objects.filter(project=project).select_related("author")


def visible(user: AbstractBaseUser, note_id: int) -> Note:
    """A note about something that a person sees.

    Raises:
        NotFound: no such note, or they do not see its subject.
    """
    note = Note.objects.select_related("author", "job", "project").filter(pk=note_id).first()
    if note is None or not _sees(user, note):
        raise NotFound("There is no such note, or you may not see what it is about.")
    return note


def _sees(user: AbstractBaseUser, note: Note) -> bool:
    if note.job is not None:
        return Job.objects.visible_to(user).filter(pk=note.job.pk).exists()
    return note.project is not None and projects.visible_to(user).filter(pk=note.project.pk).exists()


def write(by: User, about: Job | Project, text: str, *, step: int | None = None) -> Note:
    """Write a note about a job, a step of it, or a project that this person sees.

    Raises:
        Malformed: it is empty or too long, or names a step of a project.
        Conflict: there are too many notes already.
    """
    text = _checked(text)
    if isinstance(about, Project) and step is not None:
        sentence = "a project has no steps; leave it out"
        raise Malformed(Sentence("step: {sentence}.", sentence=sentence), fields={"step": [sentence]})
    project, job = (about, None) if isinstance(about, Project) else (None, about)
    if Note.objects.filter(project=project, job=job).count() >= MOST_NOTES:
        raise Conflict(
            Sentence("There are {most_notes:,} notes already. Delete some first.", most_notes=MOST_NOTES)
        )
    return Note.objects.create(author=by, text=text, step=step, project=project, job=job)


def change(by: AbstractBaseUser, note: Note, text: str) -> Note:
    """Replace the text of one's own note.

    Raises:
        Forbidden: it is another person's.
        Malformed: it is empty or too long.
    """
    if note.author_id != by.pk:
        raise Forbidden("Only its author may change a note.")
    note.text, note.changed_at = _checked(text), timezone.now()
    note.save(update_fields=["text", "changed_at"])
    return note


def may_remove(by: AbstractBaseUser, note: Note) -> bool:
    """Whether a person may delete a note: its author, and who may act on what it is about."""
    if note.author_id == by.pk:
        return True
    if note.job is not None:
        return rights.may_steer(by, note.job)
    return note.project is not None and projects.manages(by, note.project)


def remove(by: AbstractBaseUser, note: Note, *, address: str = "") -> None:
    """Delete a note.

    Raises:
        Forbidden: it is another person's.
    """
    if not may_remove(by, note):
        raise Forbidden("Only its author, and who may act on what it is about, may delete a note.")
    with transaction.atomic():
        if note.author_id != by.pk:
            about = f"job {note.job.short_id}" if note.job else f"project {note.project_id}"
            text = f"Deleted a note of {note.author.get_username()}."
            audit.record(by, "note.removed", about, text, address=address)
        note.delete()


def _checked(text: str) -> str:
    text = text.replace("\r\n", "\n").strip()
    if not text or len(text) > MOST_LETTERS:
        sentence = Sentence("give a text of 1 to {most_letters:,} characters", most_letters=MOST_LETTERS)
        raise Malformed(Sentence("text: {sentence}.", sentence=sentence), fields={"text": [sentence]})
    return text
