"""berth note, share and project: what people show each other."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from berth.cli.choosing import find_job
from berth.cli.printing import remark, safe, say, show_json
from berth.cli.tables import grid, terminal
from berth.client import Berth, BerthError, Job, Link, Note, Project
from berth.shared.arguments import WrongUse, duration_s


def read_text(text: str) -> str:
    """The text of a note, from standard input for a dash.

    Raises:
        BerthError: the server knows no such link.
    """
    text = sys.stdin.read() if text == "-" else text
    if not text.strip():
        raise BerthError("The note is empty; give a text, or - and send it to standard input.")
    return text


def show_notes(notes: Sequence[Note]) -> None:
    if not notes:
        remark("No notes yet. Write one with: berth note JOB 'text'")
    for each in reversed(notes):
        where = "" if each.step is None else f", step {each.step}"
        say(f"{safe(each.author)}, {each.created_at.astimezone():%Y-%m-%d %H:%M}{where}")
        say("\n".join(f"  {safe(line)}" for line in each.text.split("\n")))


def say_written(job: Job, note: Note) -> None:
    where = f"{job.short_id}" if note.step is None else f"step {note.step} of {job.short_id}"
    say(f"Wrote a note about {where}.")


class LinkFields(TypedDict, total=False):
    """What ``Berth.share`` takes for a link."""

    kind: str
    project: str
    sweep: str
    jobs: list[str]
    expires_in_s: float
    shows: list[str]


def read_link(
    berth: Berth,
    jobs: Sequence[str],
    *,
    project: str | None,
    sweep: str | None,
    report: bool,
    lasts: str,
    shows: str,
) -> LinkFields:
    """The fields of a link as the options ask for it.

    Raises:
        WrongUse: they name nothing, or several things.
    """
    if sum([bool(jobs), project is not None, sweep is not None]) != 1:
        raise WrongUse("Give what the link shows: jobs, --project or --sweep.")
    if report and len(jobs) != 1:
        raise WrongUse("--report shows one job; give it alone.")
    given: LinkFields = {
        "expires_in_s": duration_s(lasts),
        "shows": [name.strip() for name in shows.split(",") if name.strip()],
    }
    if project is not None:
        return {**given, "kind": "project", "project": project}
    if sweep is not None:
        return {**given, "kind": "sweep", "sweep": berth.find_sweep(sweep).id}
    kind = "report" if report else "compare" if len(jobs) > 1 else "job"
    return {**given, "kind": kind, "jobs": [find_job(berth, text).id for text in jobs]}


def say_made(link: Link, *, as_json: bool) -> None:
    if as_json:
        show_json(link.json)
        return
    say(link.url)
    until = f"{link.expires_at.astimezone():%Y-%m-%d %H:%M}"
    remark(f"Shows {safe(link.title)} ({', '.join(link.shows)}) to anybody who has it, until {until}.")
    remark(f"It is shown only now. Take it back with: berth share --end {link.id}")


def show_links(links: Sequence[Link], *, as_json: bool) -> None:
    if as_json:
        show_json([each.json for each in links])
    elif not links:
        remark("No links. Make one with: berth share JOB")
    else:
        table = grid("id", "for", "shows", "parts", "until", "last used")
        for each in links:
            used = f"{each.last_used_at.astimezone():%Y-%m-%d %H:%M}" if each.last_used_at else "never"
            until = f"{each.expires_at.astimezone():%Y-%m-%d %H:%M}"
            cells = [safe(each.note), safe(each.title), ", ".join(each.shows)]
            table.add_row(str(each.id), *cells, until, used)
        terminal().print(table)


def end_link(berth: Berth, link: int, *, as_json: bool) -> None:
    berth.unshare(link)
    say_done({"ended": link}, f"Took link {link} back.", as_json=as_json)


def show_projects(projects: Sequence[Project], *, as_json: bool) -> None:
    if as_json:
        show_json([each.json for each in projects])
    elif not projects:
        remark("No projects. Make one with: berth project make NAME")
    else:
        table = grid("name", "jobs", "members", "")
        for each in projects:
            table.add_row(each.name, str(each.job_count), str(len(each.members)), safe(each.description))
        terminal().print(table)


def show_project(project: Project, *, as_json: bool) -> None:
    if as_json:
        show_json(project.json)
        return
    say(f"{project.name}: {safe(project.description)}" if project.description else project.name)
    for member in project.members:
        say(f"  {safe(member['username'])}, {member['role']}")


def say_done(answer: Mapping[str, Any], sentence: str, *, as_json: bool) -> None:
    if as_json:
        show_json(dict(answer))
    else:
        say(sentence)
