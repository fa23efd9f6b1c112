"""Read a submit: JSON, or a form with the job and its files."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from orchestrator.api.http.reading import read_json
from orchestrator.api.http.schema import Schema
from orchestrator.exceptions import Malformed, Sentence, TooLarge
from orchestrator.jobs.submission.code import Upload

JOB_PART_BYTES = 16 * 1024**2
LONGEST_KEY = 255
FILE_PARTS = ("script", "bundle")


def request_body(part: str, schema: str) -> Schema:
    """The OpenAPI text of a body: JSON of this schema, or a form with it in a part of this name, beside the code."""
    described = {"$ref": f"#/components/schemas/{schema}"}
    return {
        "required": True,
        "content": {
            "application/json": {"schema": described},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [part],
                    "properties": {
                        part: described,
                        "script": {"type": "string", "contentMediaType": "text/x-python"},
                        "bundle": {"type": "string", "contentMediaType": "application/zip"},
                    },
                },
                "encoding": {part: {"contentType": "application/json"}},
            },
        },
    }


REQUEST_BODY = request_body("job", "JobSpec")
KEY_PARAMETER: Schema = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": LONGEST_KEY},
    "description": "A repeated key with the same body returns the same answer for 24 hours.",
}


@dataclass(frozen=True, slots=True)
class Submit:
    """The contents of a submit."""

    job: Any
    script: Upload | None = None
    bundle: Upload | None = None


def read_submit(request: HttpRequest, part: str = "job") -> Submit:
    """Read the job and its files.

    Args:
        part: the name of the part that holds the job, or what is submitted in its place.

    Raises:
        Malformed: neither JSON nor a form with that part, or a form with an unknown part.
        TooLarge: that part is too large; files have their own limits.
    """
    if not (request.content_type or "").startswith("multipart/"):
        return Submit(read_json(request.body))
    _check_parts(request, part)
    return Submit(
        read_json(_job_part(request, part)),
        script=request.FILES.get("script"),
        bundle=request.FILES.get("bundle"),
    )


def read_idempotency_key(request: HttpRequest) -> str | None:
    """Read the caller's idempotency key; None without one.

    Raises:
        Malformed: the key is empty, too long or not printable ASCII.
    """
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    if not 1 <= len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable() or not key.strip():
        sentence = Sentence(
            "An Idempotency-Key has 1 to {longest_key} printable ASCII characters, such as a UUID.",
            longest_key=LONGEST_KEY,
        )
        raise Malformed(sentence, fields={"Idempotency-Key": [sentence]})
    return key


def _check_parts(request: HttpRequest, part: str) -> None:
    names = [*request.POST, *request.FILES]
    accepted = (part, *FILE_PARTS)
    if unknown := [name for name in names if name not in accepted]:
        raise Malformed(
            Sentence(
                "The form has an unknown part {unknown!r}. Accepted are {accepted}.",
                unknown=unknown[0][:60],
                accepted=", ".join(accepted),
            ),
            fields={name[:60]: [f"unknown part; accepted are {', '.join(accepted)}"] for name in unknown},
        )
    for name in accepted:
        if len(request.POST.getlist(name)) + len(request.FILES.getlist(name)) > 1:
            raise Malformed(
                Sentence("The form has the part {name} twice.", name=name), fields={name: ["is there twice"]}
            )
    if text := [name for name in FILE_PARTS if name in request.POST]:
        raise Malformed(
            Sentence("The part {text} has no file name. Send it as a file.", text=text[0]),
            fields={text[0]: ["send it as a file"]},
        )


def _job_part(request: HttpRequest, part: str) -> bytes:
    file = request.FILES.get(part)
    if file is not None:
        if (file.size or 0) > JOB_PART_BYTES:
            raise TooLarge(
                Sentence(
                    "The part {part} is larger than {job_part_bytes:,} bytes.",
                    part=part,
                    job_part_bytes=JOB_PART_BYTES,
                )
            )
        return bytes(file.read())
    text = request.POST.get(part)
    if text is None:
        raise Malformed(
            Sentence("The form has no part named {part}. Put the {part}'s JSON there.", part=part),
            fields={part: ["is missing"]},
        )
    return text.encode()
