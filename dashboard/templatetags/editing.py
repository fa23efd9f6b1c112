"""The fields of a job that pages change in place: a button with the value, which static/js/edit.js opens."""

from collections.abc import Callable
from dataclasses import dataclass

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from berth.shared import words
from berth.shared.language import text
from orchestrator.api.resources.search import EditField, typed_field
from orchestrator.jobs.submission.updates import CHANGEABLE_WHEN_ENDED
from orchestrator.models import Job

register = template.Library()
NONE = "none"


@dataclass(frozen=True, slots=True)
class EditableField:
    """A field as people see it; ``typed_field`` is how they type it."""

    label: str
    shown: Callable[[Job], str]


EDITABLE: dict[EditField, EditableField] = {
    "name": EditableField("Name", lambda job: job.name),
    "priority": EditableField("Priority", lambda job: str(job.priority)),
    "time_limit_s": EditableField(
        "Time limit", lambda job: text(NONE) if job.time_limit_s is None else words.duration(job.time_limit_s)
    ),
    "tags": EditableField("Tags", lambda job: ", ".join(job.tags) or text(NONE)),
}


def _is_open(job: Job, field: EditField) -> bool:
    """Whether the job's state lets this field change."""
    return field in CHANGEABLE_WHEN_ENDED or not job.is_final


def _button(job: Job, name: EditField) -> SafeString:
    """The value as a button that changes it; its accessible name says the field, the job and the value."""
    label, shown = EDITABLE[name].label, EDITABLE[name].shown(job)
    head = format_html('data-edit="{}" data-path="/api/v1/jobs/{}"', name, job.pk)
    says = text("{field} of {job}: {value}. Change", field=text(label), job=job.name, value=shown)
    return format_html(
        '<button type="button" class="edit" title="{}" {} aria-label="{}" data-value="{}" data-job-name="{}">{}</button>',
        *(text("Change"), head, says, typed_field(job, name), job.name, shown),
    )


@register.simple_tag
def edit(job: Job, field: EditField, may_steer: bool) -> SafeString:
    """Render the field's value: a button for those who may change it now, else plain text."""
    if may_steer and _is_open(job, field):
        return _button(job, field)
    return format_html("<bdi>{}</bdi>", EDITABLE[field].shown(job))
