"""What templates need to write states, sizes and times."""

from datetime import UTC, datetime

from django import template
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from berth import words
from orchestrator.jobs.launch import isolation
from orchestrator.models import Attempt, JobState, StopReason

register = template.Library()
register.filter("size", words.size)
register.filter("gib", words.gib)
register.filter("duration", words.duration)
register.filter("value", words.value)
register.filter("listed", words.listed)


@register.filter
def moment(seconds: float) -> datetime:
    """Wall clock seconds as a time."""
    return datetime.fromtimestamp(seconds, tz=UTC)


@register.filter
def plural(count: int, one: str) -> str:
    return words.plural(count, one)


@register.simple_tag
def icon(name: str) -> SafeString:
    return format_html(
        '<svg class="icon" aria-hidden="true"><use href="{}#{}"></use></svg>',
        static("img/icons.svg"),
        name,
    )


@register.simple_tag
def state(name: str, stop_reason: str = "") -> SafeString:
    """A job's state: word, shape and colour."""
    preempted = name == JobState.QUEUED and stop_reason == StopReason.PREEMPT
    shape = "preempted" if preempted else name
    return format_html(
        '<span class="state state-{}">{}<span>{}</span></span>', name, icon(shape), name.replace("_", " ")
    )


@register.simple_tag
def when(at: datetime | None) -> SafeString:
    """A moment as people say it; the script keeps it fresh, the title has the exact time."""
    if at is None:
        return SafeString("")
    words_now = words.relative((at - timezone.now()).total_seconds())
    return format_html(
        '<time datetime="{}" title="{}" data-relative>{}</time>', at.isoformat(), _exact(at), words_now
    )


@register.simple_tag
def since(at: datetime | None) -> SafeString:
    """How long something has been going on."""
    if at is None:
        return SafeString("")
    words_now = words.duration((timezone.now() - at).total_seconds())
    return format_html(
        '<time datetime="{}" title="since {}" data-since>{}</time>', at.isoformat(), _exact(at), words_now
    )


@register.simple_tag
def clock(at: datetime | float | None) -> SafeString:
    """Hours and minutes; the script turns UTC into the reader's time zone."""
    if at is None:
        return SafeString("")
    exact = at if isinstance(at, datetime) else moment(at)
    return format_html(
        '<time datetime="{}" title="{}" data-clock>{} UTC</time>',
        exact.isoformat(),
        _exact(exact),
        exact.strftime("%H:%M"),
    )


@register.simple_tag
def day(at: datetime) -> SafeString:
    """The day of a moment; the script tells it in the reader's time zone."""
    return format_html('<time datetime="{}" data-day>{}</time>', at.isoformat(), at.strftime("%a %d"))


def _exact(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@register.filter
def sandbox(attempt: Attempt) -> dict[str, object] | None:
    """How an attempt was kept apart from others, in words."""
    return isolation.describe(attempt.sandbox_level, attempt.sandbox_walls)
