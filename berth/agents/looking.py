"""Tools that change nothing: each takes ``Rest`` and the arguments of a call, and returns the answer's fields."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

from berth.shared import words
from berth.shared.arguments import by_name
from berth.shared.job_fields import SETTINGS

UNFINISHED = "queued,held,backoff,starting,running,stopping,unknown"
ENDED = frozenset({"succeeded", "failed", "cancelled", "timed_out"})
FULL_ID = 36  # characters of a UUID
MOST_POINTS = 200
MOST_LINES = 200
LONGEST_LINE = 400
Answer = dict[str, Any]
Given = Mapping[str, Any]


class ToolError(Exception):
    """A call that was not carried out; the text is a sentence that says why, and what to do."""


class Rest(Protocol):
    """One request to REST; returns the answer's JSON. A repeated ``key`` makes one job.

    Raises:
        ToolError: the server refused, in its own words.
    """

    def __call__(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        key: str | None = None,
    ) -> Any: ...


def server(rest: Rest, _: Given) -> Answer:
    me = rest("GET", "/me")
    pools = [
        {"name": one["name"], "devices": one["usable_count"], "free": one["free_count"]}
        for one in rest("GET", "/pools")["results"]
    ]
    return {"person": me["username"], "scope": me["scope"], "agent": me.get("agent"), "pools": pools}


def devices(rest: Rest, given: Given) -> Answer:
    found = rest("GET", "/devices", params={"pool": given.get("pool")})["results"]
    return {"devices": [_device(one) for one in found]}


def _device(one: Mapping[str, Any]) -> Answer:
    reading = one["reading"] or {}
    return {
        "label": one["label"],
        "state": one["availability"]["state"],
        "sentence": one["availability"]["sentence"],
        "memory_gib": round(one["memory_bytes"] / words.GIB, 1),
        "used_gib": round(reading.get("used_bytes", 0) / words.GIB, 1),
        "jobs": [f"{each['name']} {each['short_id']} ({each['owner']})" for each in one["holders"]],
    }


def queue(rest: Rest, given: Given) -> Answer:
    params = {"state": given.get("state", UNFINISHED), "limit": max(1, min(100, given.get("limit", 20)))}
    found = rest("GET", "/jobs", params=params)
    return {"jobs": [short(one) for one in found["results"]], "more": found["next"] is not None}


def short(job: Mapping[str, Any]) -> Answer:
    """A job in a line of a list."""
    return {
        "id": job["id"],
        "name": job["name"],
        "owner": job["owner"],
        "state": job["state"],
        "gpus": job["gpus"],
        "sentence": sentence_of(job),
    }


def sentence_of(job: Mapping[str, Any]) -> str:
    """The most important thing about a job now."""
    if job["explanation"]:
        return str(job["explanation"]["sentence"])
    return str(job["exit_detail"] or job["reason"] or f"The job is {job['state']}.")


def job(rest: Rest, given: Given) -> Answer:
    found = look(rest, given["job"])
    return {
        **short(found),
        "progress": found["progress"],
        "last_values": found["last_values"],
        "run_s": found["run_s"],
        "devices": [one["label"] for one in (found["attempt"] or {}).get("devices", ())],
        "settings": {field.name: value for field in SETTINGS if (value := found.get(field.name))},
        "page": found["links"]["page"],
    }


def look(rest: Rest, name: str) -> Answer:
    """Everything that REST says about a job, by its id, a part of it, or its name.

    Raises:
        ToolError: there is no such job, or several have the name.
    """
    try:
        return dict(rest("GET", f"/jobs/{quote(name, safe='')}"))
    except ToolError:
        found = rest("GET", "/jobs", params={"q": name, "limit": 50})["results"] if name else []
        named = [one for one in found if one["name"] == name]
        if not named:
            raise
    if len(named) > 1:
        raise ToolError(
            f"Several jobs are called {name}; give an id: {', '.join(one['id'] for one in named[:5])}."
        )
    return dict(named[0])


def path_of(rest: Rest, name: str) -> str:
    """The address of a job."""
    job_id = name if len(name) == FULL_ID else look(rest, name)["id"]
    return f"/jobs/{quote(job_id, safe='')}"


def log(rest: Rest, given: Given) -> Answer:
    path, count = f"{path_of(rest, given['job'])}/logs", max(1, min(MOST_LINES, given.get("lines", 50)))
    params = {"rank": given.get("rank", 0)}
    if "find" in given:
        found = rest("GET", f"{path}/search", params={**params, "q": given["find"], "limit": count})
        lines = found["hits"]
    else:
        found = rest("GET", f"{path}/lines", params={**params, "from": -count, "count": count})
        lines = found["lines"]
    return {"attempt": found["attempt"], "total": found["total"], "text": text_of(lines)}


def text_of(lines: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(str(one["text"])[:LONGEST_LINE] for one in lines)


def metrics(rest: Rest, given: Given) -> Answer:
    """Series of at most 200 points: the smallest and the largest of each bucket, so that no spike is lost."""
    most = max(2, min(MOST_POINTS, given.get("points", 100)))
    params: dict[str, int | str] = {"max_points": most // 2}
    if names := given.get("names"):
        params["names"] = ",".join(names)
    found = rest("GET", f"{path_of(rest, given['job'])}/metrics", params=params)
    return {"series": {name: _points(each) for name, each in found["series"].items()}}


def _points(series: Mapping[str, Any]) -> list[list[float | None]]:
    points: list[list[float | None]] = []
    for x, low, high in zip(series["x"], series["y_min"], series["y_max"], strict=True):
        points += [[x, low]] if low == high else [[x, low], [x, high]]
    return points


def compare(rest: Rest, given: Given) -> Answer:
    """What differs between jobs: settings, arguments by name, and the newest values."""
    jobs = [look(rest, name) for name in given["jobs"]]
    if len(jobs) < 2:
        raise ToolError("Name two or more jobs to compare.")
    columns = [
        {
            **{field.name: one.get(field.name) for field in SETTINGS if field.name != "args"},
            **{f"--{name}": value for name, value in by_name(one["args"]).items()},
            "state": one["state"],
            **{f"last {name}": value for name, value in one["last_values"].items()},
        }
        for one in jobs
    ]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = {name: [column.get(name) for column in columns] for name in names}
    differing = {name: row for name, row in rows.items() if any(value != row[0] for value in row)}
    return {"jobs": [one["id"] for one in jobs], "differs": differing}


def triage(rest: Rest, given: Given) -> Answer:
    """Why a job failed or waits, with the facts, the end of its log, and what to try."""
    found = look(rest, given["job"])
    attempt = found["attempt"] or {}
    answer: Answer = {
        "sentence": sentence_of(found),
        "cause": (found["ending"] or found["why"] or {}).get("code", ""),
        "facts": (found["ending"] or found["why"] or {}).get("facts", {}),
        "first_failure": attempt.get("first_failure"),
        "log": attempt.get("log_tail", ""),
        "changes": [],
    }
    if found["explanation"]:
        why = rest("GET", f"/jobs/{found['id']}/explain")
        answer |= {"cause": why["code"], "facts": why["facts"], "changes": why["would_start_now_with"]}
    elif found["attempt_count"] and not answer["log"]:
        answer["log"] = log(rest, {"job": found["id"], "lines": 30})["text"]
    return answer


def wait(rest: Rest, given: Given) -> Answer:
    """One look at a job; the server of the tool looks again until ``done`` or the time is over."""
    found = look(rest, given["job"])
    until = given.get("until", "ended")
    started = found["state"] in ENDED or found["state"] == "running"
    return {**short(found), "done": started if until == "started" else found["state"] in ENDED}
