"""Links that show a job, a report, a comparison, a sweep or a project to people without an account, until they end."""

import hashlib
import secrets
from collections.abc import Sequence
from datetime import timedelta

from django.contrib.auth.models import AbstractBaseUser, User
from django.db import transaction
from django.utils import timezone

from orchestrator.exceptions import Conflict, Forbidden, Malformed, NotFound, Sentence
from orchestrator.models import Job, LinkKind, Project, ShareLink, Sweep, Visibility
from orchestrator.models.jobs import JobQuerySet
from orchestrator.people import audit, rights
from orchestrator.sharing import projects
from orchestrator.spec.plain_text import clean_text

DAY_S = 24 * 3600
USUAL_LIFE_S = 7.0 * DAY_S
LONGEST_LIFE_S = 90.0 * DAY_S
MOST_OPEN = 500  # of one person
MOST_JOBS = 24  # of a comparison
USED_EVERY_S = 60  # how exactly its last use is stored
# What a link may show, in the order of the page. Environment values and secrets are never shown.
SECTIONS = {
    "charts": "charts",
    "log": "the end of the log",
    "notes": "notes",
    "arguments": "command, arguments and data",
    "history": "attempts and history",
    "code": "code",
}
USUAL_SECTIONS = ("charts", "log")
_OVER = (
    "This link is over: it was taken back, or its time has ended. Ask the person who sent it for a new one."
)


def make(
    by: User,
    *,
    kind: LinkKind,
    jobs: Sequence[Job] = (),
    sweep: Sweep | None = None,
    project: Project | None = None,
    shows: Sequence[str] = USUAL_SECTIONS,
    note: str = "",
    life_s: float = USUAL_LIFE_S,
    address: str = "",
) -> tuple[ShareLink, str]:
    """Create a link to things that its maker sees; the second value is the only copy of its secret text.

    Args:
        note: whom it is for.

    Raises:
        Forbidden: it shows what this person may only look at.
        Malformed, Conflict: a value cannot be.
    """
    _check(kind, jobs, sweep, project, shows, life_s)
    if not _may_share(by, jobs, sweep, project):
        raise Forbidden(
            "Only those who may act on all of it may make a link to it: a job's owner, a project's owners, operators."
        )
    if ShareLink.objects.open().filter(owner=by).count() >= MOST_OPEN:
        raise Conflict(
            Sentence("You have {most_open} open links. Take some back first.", most_open=MOST_OPEN)
        )
    text = secrets.token_urlsafe(32)
    with transaction.atomic():
        link = ShareLink.objects.create(
            digest=_digest(text),
            owner=by,
            kind=kind,
            sweep=sweep,
            project=project,
            shows=[name for name in SECTIONS if name in shows],
            note=_clean(note),
            expires_at=timezone.now() + timedelta(seconds=life_s),
        )
        link.jobs.set(jobs)
        shows = ", ".join(link.shows)
        sentence = f"Made a link to {title_of(link)} until {link.expires_at:%Y-%m-%d}; it shows {shows}."
        audit.record(by, "link.made", f"link {link.pk}", sentence, address=address)
    return link, text


def find(text: str) -> ShareLink:
    """The open link with this secret text.

    Raises:
        NotFound: no such link, it has ended, or its maker could no longer make it.
    """
    links = ShareLink.objects.open().select_related("owner", "sweep", "project")
    link = links.filter(digest=_digest(text)).first()
    if link is None or not link.owner.is_active:
        raise NotFound(_OVER)
    if not _may_share(link.owner, list(link.jobs.all()), link.sweep, link.project):
        raise NotFound(_OVER)
    _note_use(link)
    return link


def jobs_of(link: ShareLink) -> JobQuerySet:
    """The jobs that a link shows; nothing else is shown by it."""
    if link.project is not None:
        shown = (Visibility.PROJECT, Visibility.LAB)
        return Job.objects.filter(project=link.project, visibility__in=shown)
    if link.sweep is not None:
        return Job.objects.filter(trial__sweep=link.sweep)
    return Job.objects.filter(pk__in=link.jobs.values("pk"))


def title_of(link: ShareLink) -> str:
    """What a link shows, in a few words."""
    if link.project is not None:
        return Sentence("project {name}", name=str(link.project))
    if link.sweep is not None:
        return Sentence("sweep {name}", name=link.sweep.name)
    names = [str(job) for job in link.jobs.all()[:2]]
    more = link.jobs.count() - len(names)
    jobs = ", ".join(names)
    if more > 0:
        jobs = Sentence("{jobs} and {more} more", jobs=jobs, more=more)
    return Sentence("the report of {jobs}", jobs=jobs) if link.kind == LinkKind.REPORT else jobs


def revoke(link: ShareLink, *, by: AbstractBaseUser, address: str = "") -> None:
    """Take a link back; repeating this is harmless.

    Raises:
        NotFound: it is another person's, and this one does not operate every pool.
    """
    if link.owner_id != by.pk and not rights.hosts(by):
        raise NotFound("You have no such link.")
    with transaction.atomic():
        if ShareLink.objects.filter(pk=link.pk, revoked_at=None).update(revoked_at=timezone.now()):
            audit.record(by, "link.revoked", f"link {link.pk}", "Took the link back.", address=address)


def _may_share(
    user: AbstractBaseUser, jobs: Sequence[Job], sweep: Sweep | None, project: Project | None
) -> bool:
    if project is not None:
        return projects.manages(user, project)
    if sweep is not None:
        return rights.may_steer(user, sweep)
    return bool(jobs) and all(rights.may_steer(user, job) for job in jobs)


def _check(
    kind: LinkKind,
    jobs: Sequence[Job],
    sweep: Sweep | None,
    project: Project | None,
    shows: Sequence[str],
    life_s: float,
) -> None:
    most = {LinkKind.JOB: 1, LinkKind.REPORT: 1, LinkKind.COMPARE: MOST_JOBS}.get(kind, 0)
    if len(jobs) > most or (most and not jobs):
        wanted = "one job" if most == 1 else f"1 to {most} jobs" if most else "no jobs"
        raise _wrong("jobs", Sentence("a link of the kind {kind} takes {wanted}", kind=kind, wanted=wanted))
    for name, given, wanted in (("sweep", sweep, LinkKind.SWEEP), ("project", project, LinkKind.PROJECT)):
        if (given is not None) != (kind == wanted):
            raise _wrong(
                name, Sentence("give it for a link of the kind {wanted}, and for no other", wanted=wanted)
            )
    if unknown := sorted(set(shows) - SECTIONS.keys()):
        raise _wrong(
            "shows",
            Sentence(
                "{unknown!r} is no part of a page; choose from {sections}",
                unknown=unknown[0][:40],
                sections=", ".join(SECTIONS),
            ),
        )
    if not shows:
        raise _wrong("shows", Sentence("name what it shows: {sections}", sections=", ".join(SECTIONS)))
    if not 0 < life_s <= LONGEST_LIFE_S:
        raise _wrong(
            "expires_in_s",
            Sentence(
                "give more than 0 and at most {longest_life_s:.0f} seconds, which are 90 days",
                longest_life_s=LONGEST_LIFE_S,
            ),
        )


def _note_use(link: ShareLink) -> None:
    now = timezone.now()
    if link.last_used_at is None or (now - link.last_used_at).total_seconds() >= USED_EVERY_S:
        ShareLink.objects.filter(pk=link.pk).update(last_used_at=now)


def _clean(note: str) -> str:
    try:
        return clean_text(note)[:80]
    except ValueError as error:
        raise _wrong("note", str(error)) from error


def _wrong(name: str, message: str) -> Malformed:
    return Malformed(Sentence("{name}: {message}.", name=name, message=message), fields={name: [message]})


def _digest(text: str) -> str:
    # 256 random bits cannot be guessed, so a fast hash is enough.
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
