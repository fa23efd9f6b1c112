"""Writes docs/reference/job-fields.md: ``python -m orchestrator.spec.reference > docs/reference/job-fields.md``."""

import json
import sys

from berth.shared.field import JobField
from berth.shared.job_fields import FIELDS
from orchestrator.spec.job_spec import JobSpec

_HEAD = """# Fields of a job

Made from the table `berth/shared/job_fields.py`. REST, the Python client, `berth run` and the submit form take the same
fields; the limits of each stand in the OpenAPI schema (`GET /openapi.json`), and how some of them work together in
[the contract](api.md#a-job). A field with **c** can change after the submit (`PATCH /jobs/{id}`); jobs that differ
in a field with **s** were not run with the same settings, and Compare shows it.

| field | means | default | example | option | |
|---|---|---|---|---|---|
"""


def job_fields_page() -> str:
    defaults = JobSpec().model_dump(mode="json")
    return _HEAD + "".join(_row(field, defaults[field.name]) for field in FIELDS)


def _row(field: JobField, default: object) -> str:
    marks = f"{'c' if field.changeable else ''}{'s' if field.setting else ''}"
    option = f"`{field.option.replace(' ', '` `')}`" if field.option else ""
    cells = (
        f"`{field.name}`",
        field.help,
        field.empty or f"`{json.dumps(default)}`",
        f"`{json.dumps(field.example)}`",
        option,
        f"**{marks}**" if marks else "",
    )
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n"


if __name__ == "__main__":
    sys.stdout.write(job_fields_page())
