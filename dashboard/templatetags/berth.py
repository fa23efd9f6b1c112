"""Template tags and filters for states, sizes and times."""

from datetime import UTC, datetime
from functools import cache
from urllib.parse import quote

from django import template
from django.templatetags.static import static
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as mark

from berth.shared import words
from berth.shared.language import plural_text, text
from orchestrator.jobs.launch import isolation
from orchestrator.models import Attempt, ExitKind, JobState, StopReason
from orchestrator.scheduler.forecast.steps import Step
from orchestrator.sharing import notes

register = template.Library()
register.filter("size", words.size)
register.filter("gib", words.gib)
register.filter("duration", words.duration)
register.filter("value", words.value)
register.filter("listed", words.listed)
register.filter("labelled", words.labelled)


@register.filter
def markdown(text: str) -> SafeString:
    """Markdown of a note as HTML, which ``notes.as_html`` makes harmless."""
    return mark_safe(notes.as_html(text))  # noqa: S308  # cleaned there


DAY_S = 86_400.0
FAVICON = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'>"
    "<rect width='16' height='16' rx='3' fill='#0B57B0'/>"
    "<path d='M2.500 10h11l-1.400 3H3.900zM4.500 10V6.500h7V10M8 6.500V3' fill='none' stroke='#fff'"
    " stroke-width='1.400' stroke-linejoin='round' stroke-linecap='round'/></svg>"
)


@register.filter
def moment(seconds: float) -> datetime:
    """Convert seconds since 1970 to a datetime."""
    return datetime.fromtimestamp(seconds, tz=UTC)


@register.filter
def plural(count: int, one: str) -> str:
    return words.plural(count, one)


@register.simple_tag
def favicon() -> SafeString:
    """The tab's icon as a data URI: a file would cost each page one more request."""
    return SafeString("data:image/svg+xml," + quote(FAVICON, safe=" '/:="))


@register.simple_tag
def scripts_words(language: str) -> str:
    """The address of what scripts say in a language that is not English."""
    return static(f"js/words-{language}.js")


@register.simple_tag
def icon(name: str) -> SafeString:
    return format_html(
        '<svg class="icon" aria-hidden="true"><use href="{}#{}"></use></svg>',
        static("img/icons.svg"),
        name,
    )


@register.filter
def state_word(name: str) -> str:
    """The state of a job, a sweep, a trial, a service: one word, as chips and tables have it."""
    return text(name.replace("_", " "))


_EXIT_WORDS = {
    ExitKind.OK: mark("ok"),
    ExitKind.USER_ERROR: mark("error in the script"),
    ExitKind.OOM_GPU: mark("out of GPU memory"),
    ExitKind.OOM_CPU: mark("out of memory"),
    ExitKind.SIGNAL: mark("ended by a signal"),
    ExitKind.HANG: mark("no progress"),
    ExitKind.LOST: mark("lost"),
    ExitKind.GPU_FAULT: mark("GPU fault"),
    ExitKind.INFRA: mark("fault of the server"),
    ExitKind.CANCELLED: mark("cancelled"),
    ExitKind.TIMEOUT: mark("out of time"),
    ExitKind.PREEMPTED: mark("preempted"),
    ExitKind.CODE: mark("no code"),
    ExitKind.ENVIRONMENT: mark("no packages"),
    ExitKind.DATA: mark("no data"),
}


@register.filter
def exit_word(kind: str) -> str:
    """How an attempt ended, in few words; a kind that a newer version wrote is its own."""
    return _(_EXIT_WORDS[ExitKind(kind)]) if kind in ExitKind.values else kind


@register.simple_tag
def state(name: str, stop_reason: str = "") -> SafeString:
    """Render a job's state with its word, shape and colour."""
    preempted = name == JobState.QUEUED and stop_reason == StopReason.PREEMPT
    shape = "preempted" if preempted else name
    return format_html(
        '<span class="state state-{}">{}<span>{}</span></span>', name, icon(shape), state_word(name)
    )


# Sweeps and their trials, by the job's state that looks as theirs should.
_LOOKS = {"paused": JobState.HELD, "ended": JobState.SUCCEEDED, "stopped": JobState.CANCELLED}


@register.simple_tag
def trial_state(name: str) -> SafeString:
    """Render the state of a sweep or of a trial."""
    return _trial_state(name, state_word(name))


@cache  # a page has one for each of hundreds of trials
def _trial_state(name: str, word: str) -> SafeString:
    looks = str(_LOOKS.get(name, name))
    return format_html('<span class="state state-{}">{}<span>{}</span></span>', looks, icon(looks), word)


@register.simple_tag
def when(at: datetime | None) -> SafeString:
    """Render a relative time, beyond a day a date; the script keeps it fresh, and the title has the exact time."""
    if at is None:
        return SafeString("")
    ahead_s = (at - timezone.now()).total_seconds()
    words_now = words.relative(ahead_s) if abs(ahead_s) <= DAY_S else date_format(at, _("M j, Y"))
    return format_html(
        '<time datetime="{}" title="{}" data-relative>{}</time>', at.isoformat(), _exact(at), words_now
    )


@register.simple_tag
def since(at: datetime | None) -> SafeString:
    """Render the time passed since a moment."""
    if at is None:
        return SafeString("")
    words_now = words.duration((timezone.now() - at).total_seconds())
    since_when = text("since {at}", at=_exact(at))
    return format_html(
        '<time datetime="{}" title="{}" data-since>{}</time>', at.isoformat(), since_when, words_now
    )


@register.simple_tag
def clock(at: datetime | float | None) -> SafeString:
    """Render hours and minutes in UTC; the script converts them to the reader's time zone."""
    if at is None:
        return SafeString("")
    exact = at if isinstance(at, datetime) else moment(at)
    return format_html(
        '<time datetime="{}" title="{}" data-clock>{}<span class="zone"> UTC</span></time>',
        exact.isoformat(),
        _exact(exact),
        exact.strftime("%H:%M"),
    )


@register.simple_tag
def offer_range(step: Step) -> str:
    """The range of an estimated start, relative to now, and the jobs that are paused for it."""
    when = words.start_range(step.start_earliest, step.start_latest, timezone.now())
    if not step.stops:
        return text("starts {when}", when=when)
    return plural_text(
        "starts {when}, once {count:,} job has been paused",
        "starts {when}, once {count:,} jobs have been paused",
        step.stops,
        when=when,
    )


@register.simple_tag
def day(at: datetime) -> SafeString:
    """Render a day; the script shows it in the reader's time zone."""
    return format_html('<time datetime="{}" data-day>{}</time>', at.isoformat(), date_format(at, "D d"))


def _exact(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@register.filter
def course(attempt: Attempt) -> str:
    """The devices of an attempt, where it resumed and how far it came, in one line."""
    parts = [", ".join(words.labelled(lease.device.label) for lease in attempt.leases.all())]
    if attempt.resumed_from_step is not None:
        source = f" ({attempt.resumed_from})" if attempt.resumed_from else ""
        parts.append(text("resumed from step {step}", step=words.value(attempt.resumed_from_step)) + source)
    elif attempt.resumed_from:
        parts.append(text("resumed from {checkpoint}", checkpoint=attempt.resumed_from))
    if attempt.last_step is not None:
        parts.append(text("reached step {step}", step=words.value(attempt.last_step)))
    return "; ".join(parts)


@register.filter
def sandbox(attempt: Attempt) -> isolation.Description | None:
    """Describe the sandbox of an attempt."""
    return isolation.describe(attempt.sandbox_level, attempt.sandbox_walls)
