"""Tools that change jobs, and the previews that go before them."""

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any

from berth.agents.looking import ENDED, Answer, Given, Rest, ToolError, look, path_of, short
from berth.shared import words
from berth.shared.job_fields import FIELDS
from berth.shared.project_file import Fields

NOT_COPIED = frozenset({"source", "git", "array"})


def plan(rest: Rest, given: Given) -> Answer:
    """When and where the job would run; submits nothing."""
    found = rest("POST", "/plan", body=_spec(rest, given))
    return {
        "sentence": found["sentence"],
        "starts_now": found["starts_now"],
        "start_latest": found["start_latest"],
        "devices": [one["label"] for one in found["devices"]],
        "would_stop": found["stops"],
        "changes": found["would_start_now_with"],
    }


def submit(rest: Rest, given: Given) -> Answer:
    """Submit a job, or one like an earlier job, resumed or not."""
    if given.get("resume"):
        if "like" not in given:
            raise ToolError("resume needs like: the job whose checkpoint to start from.")
        body = {**given.get("job", {}), "resume": True}
        return short(rest("POST", f"{path_of(rest, given['like'])}/retry", body=body))
    key = given.get("key") or str(uuid.uuid4())
    made = rest("POST", "/jobs", body=_spec(rest, given), key=key)
    members = (made.get("array") or {}).get("jobs") or [made["id"]]
    return {**short(made), "jobs": members, "warnings": made["warnings"]}


def _spec(rest: Rest, given: Given) -> Fields:
    """The fields of the job: the fields of the job that it is like, and what was given."""
    fields: Fields = {}
    if "like" in given:
        earlier = look(rest, given["like"])
        fields = {field.name: earlier[field.name] for field in FIELDS if _is_copied(field.name, earlier)}
        fields["source"] = {"bundle": earlier["bundle"]}
    elif "job" not in given:
        raise ToolError(
            "Give job (fields of a job, such as source and gpus), like (an earlier job), or both."
        )
    return {**fields, **given.get("job", {})}


def _is_copied(name: str, job: Mapping[str, Any]) -> bool:
    if name == "visibility" and not job.get("project"):
        return False  # the default of its pool, as the server answers it
    return name not in NOT_COPIED and job.get(name) not in (None, [], {})


def preview_stop(rest: Rest, given: Given) -> Answer:
    """What a stop would lose, and the code that the stop needs."""
    found = look(rest, given["job"])
    if found["state"] in ENDED:
        return {"sentence": f"{found['name']} has ended: nothing to stop.", "confirm": ""}
    ran = f" after {words.duration(found['run_s'])}" if found["run_s"] else ""
    step = found["progress"]["step"]
    at = f" at step {step:,}" if step is not None else ""
    sentence = f"Would cancel {found['name']} of {found['owner']}, which is {found['state']}{at}{ran}. It cannot be undone; a new job can resume its newest checkpoint."
    return {"sentence": sentence, "confirm": _code(found)}


def stop(rest: Rest, given: Given) -> Answer:
    """Cancel a job; only with the code of a preview, and only while the job is as the preview showed it."""
    found = look(rest, given["job"])
    if given["confirm"] != _code(found):
        raise ToolError(
            "The job has changed since, or was not previewed. Call preview_stop, then stop with its confirm."
        )
    return short(rest("POST", f"/jobs/{found['id']}/cancel"))


def _code(job: Mapping[str, Any]) -> str:
    as_shown = f"{job['id']} {job['state']} {job['attempt_count']}"
    return hashlib.sha256(as_shown.encode()).hexdigest()[:8]


def move(rest: Rest, given: Given) -> Answer:
    """Order one's own waiting jobs among themselves."""
    place = {name: look(rest, given[name])["id"] for name in ("before", "behind") if name in given}
    if len(place) != 1:
        raise ToolError("Give either before or behind, with the other job.")
    return short(rest("POST", f"{path_of(rest, given['job'])}/move", body=place))
