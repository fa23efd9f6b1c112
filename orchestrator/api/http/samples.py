"""How to call each operation: with curl, the command line and the Python client.

Shown in the API docs (``/api/v1/docs``) with the reader's own server address and without a token.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse

from orchestrator.api.http.authentication import SIGNED_IN
from orchestrator.api.http.errors import Unauthenticated
from orchestrator.api.http.schema import Schema

ADDRESS = "http://berth.invalid"  # replaced by the server's address when the page is sent
IN_PATHS = {
    "job_id": "4f2a91c3",
    "federation": "7b03d2e8",
    "site": "clinic-b",
    "message": "0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "sweep_id": "7b03d2e8",
    "step": "latest",
    "path": "model.pt",
    "attempt": "1",
    "number": "0",
    "device_id": "GPU-5c1f2a90",
    "pool_id": "default",
    "username": "ana",
    "key": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "name": "digits",
    **dict.fromkeys(
        ("quota_id", "reservation_id", "token_id", "target_id", "invitation_id", "note_id", "link_id"), "7"
    ),
}
QUERIES = {
    "list_jobs": "?state=running,queued",
    "read_job_log": "?rank=0&offset=-4096",
    "read_job_log_lines": "?from=0&count=200",
    "search_job_log": "?q=error",
    "search_merged_log": "?q=error",
    "poll_frames": "?topic=devices&after=",
    "search": "?q=digits",
    "send_part": "?offset=0&size_bytes=6",
    "send_message": "?offset=0&size=6",
    "get_usage": "?by=owner",
}
_OF_THE_CLIENT = "/api/v1"
_CODE = 'print("step", 1)'


@dataclass(frozen=True, slots=True)
class Sample:
    """The body to send, and the shorter ways where they exist."""

    body: Mapping[str, Any] | None = None
    command: str | None = None
    client: str | None = None


SAMPLES = {
    "submit_job": Sample(
        {"name": "digits", "gpus": 2, "source": {"text": _CODE}},
        "berth run -g2 train.py -- --lr 3e-4",
        'berth.run("train.py", gpus=2, args=["--lr", "3e-4"])',
    ),
    "list_jobs": Sample(None, "berth ps", 'list(berth.jobs(state=["running", "queued"]))'),
    "get_job": Sample(None, None, 'berth.job("4f2a91c3")'),
    "change_job": Sample(
        {"name": "digits-2", "tags": ["paper"]}, None, 'berth.job("4f2a91c3").change(tags=["paper"])'
    ),
    "cancel_job": Sample(None, "berth cancel 4f2a91c3", 'berth.job("4f2a91c3").cancel()'),
    "hold_job": Sample(None, "berth hold 4f2a91c3", 'berth.job("4f2a91c3").hold()'),
    "release_job": Sample(None, "berth release 4f2a91c3", 'berth.job("4f2a91c3").release()'),
    "preempt_job": Sample(None, None, 'berth.job("4f2a91c3").preempt()'),
    "checkpoint_job": Sample(None, None, 'berth.job("4f2a91c3").save()'),
    "move_job": Sample(
        {"before": "9c1e44d0"},
        "berth move 4f2a91c3 --before 9c1e44d0",
        'berth.job("4f2a91c3").move(before="9c1e44d0")',
    ),
    "retry_job": Sample(
        {"resume": True}, "berth resume 4f2a91c3", 'berth.job("4f2a91c3").again(resume=True)'
    ),
    "explain_job": Sample(None, "berth why 4f2a91c3", 'berth.job("4f2a91c3").explain()'),
    "list_events": Sample(None, None, 'berth.job("4f2a91c3").events()'),
    "list_attempts": Sample(None, None, 'berth.job("4f2a91c3").attempts()'),
    "read_job_log": Sample(None, "berth logs 4f2a91c3", 'berth.job("4f2a91c3").log(rank=0)'),
    "read_job_metrics": Sample(None, "berth watch 4f2a91c3", 'berth.job("4f2a91c3").metrics()'),
    "list_checkpoints": Sample(None, "berth checkpoints 4f2a91c3", 'berth.job("4f2a91c3").checkpoints()'),
    "download_checkpoint": Sample(
        None,
        "berth pull 4f2a91c3 --checkpoint latest",
        'berth.job("4f2a91c3").fetch_checkpoint("latest", Path("latest.tar"))',
    ),
    "download_checkpoint_file": Sample(
        None,
        "berth pull 4f2a91c3 step_5000.pt --checkpoint 5000",
        'berth.job("4f2a91c3").fetch_checkpoint_file(5000, "checkpoints/step_5000.pt", Path("step_5000.pt"))',
    ),
    "list_job_files": Sample(None, None, 'berth.job("4f2a91c3").files()'),
    "download_job_file": Sample(
        None,
        "berth pull 4f2a91c3 model.pt",
        'berth.job("4f2a91c3").fetch_file("model.pt", Path("model.pt"))',
    ),
    "begin_sweep": Sample(
        {
            "job": {"source": {"text": _CODE}},
            "set": ["lr=log:1e-5..1e-1"],
            "metric": "val/loss",
            "direction": "minimize",
            "budget": {"trials": 20},
        },
        "berth sweep train.py --set lr=log:1e-5..1e-1 --metric val/loss --direction minimize --budget '20 trials'",
        'berth.sweep("train.py", set=["lr=log:1e-5..1e-1"], metric="val/loss", direction="minimize", '
        'budget={"trials": 20})',
    ),
    "list_sweeps": Sample(None, "berth sweeps", "berth.sweeps()"),
    "get_sweep": Sample(None, "berth best 7b03d2e8", 'berth.find_sweep("7b03d2e8")'),
    "change_sweep": Sample({"trials": 40}, None, 'berth.find_sweep("7b03d2e8").change(trials=40)'),
    "pause_sweep": Sample(None, "berth sweeps --pause 7b03d2e8", 'berth.find_sweep("7b03d2e8").pause()'),
    "resume_sweep": Sample(None, "berth sweeps --resume 7b03d2e8", 'berth.find_sweep("7b03d2e8").resume()'),
    "ensemble_of_sweep": Sample(
        {"best": 3, "by": "predictions", "model": "train.py:build_model"},
        "berth best 7b03d2e8 --ensemble 3",
        'berth.find_sweep("7b03d2e8").ensemble(best=3)',
    ),
    "stop_sweep": Sample(None, None, 'berth.find_sweep("7b03d2e8").stop()'),
    "list_trials": Sample(None, None, 'berth.find_sweep("7b03d2e8").trials()'),
    "list_sessions": Sample(None, "berth session list", "berth.sessions()"),
    "start_session": Sample(
        {"name": "explore", "program": "jupyter", "gpus": 1, "with_packages": ["pandas"]},
        "berth session start --gpus 1 --with pandas",
        'berth.run(kind="session", program="jupyter", with_packages=["pandas"])',
    ),
    "stop_session": Sample(None, "berth session stop 4f2a91c3", 'berth.stop_session("4f2a91c3")'),
    "begin_federation": Sample(
        {
            "model": "train.py:build_model",
            "sites": 5,
            "evaluate_on": "train.py:evaluation_data",
            "job": {"source": {"text": _CODE}},
        },
        "berth federated run train.py --model train.py:build_model --sites 5 --evaluate-on train.py:evaluation_data",
        'berth.federate("train.py", model="train.py:build_model", sites=5)',
    ),
    "list_federations": Sample(None, "berth federated list", "berth.federations()"),
    "get_federation": Sample(None, "berth federated show 7b03d2e8", 'berth.federation("7b03d2e8")'),
    "stop_federation": Sample(None, "berth federated stop 7b03d2e8", 'berth.federation("7b03d2e8").stop()'),
    "invite_site": Sample(
        {"name": "clinic-b"},
        "berth federated invite 7b03d2e8 clinic-b",
        'berth.federation("7b03d2e8").invite("clinic-b")',
    ),
    "revoke_site": Sample(
        None,
        "berth federated revoke 7b03d2e8 clinic-b",
        'berth.federation("7b03d2e8").revoke("clinic-b")',
    ),
    "join_federation": Sample(
        {
            "invitation": "https://berth.example.org/federated#bsite_...",
            "model": "train.py:build_model",
            "job": {"source": {"text": _CODE}},
        },
        "berth federated join 'https://berth.example.org/federated#bsite_...' train.py --model train.py:build_model",
        'berth.join_federation("https://berth.example.org/federated#bsite_...", "train.py", model="train.py:build_model")',
    ),
    "list_services": Sample(None, "berth service list", "berth.services()"),
    "begin_service": Sample(
        {"name": "digits", "job": {"command": ["python", "serve.py"], "source": {"text": _CODE}}},
        "berth service run digits . -- python serve.py",
        'berth.serve("digits", ".", job={"command": ["python", "serve.py"]})',
    ),
    "get_service": Sample(None, "berth service show digits", 'berth.service("digits")'),
    "change_service": Sample(
        {"max_replicas": 4},
        "berth service change digits --most 4",
        'berth.service("digits").change(max_replicas=4)',
    ),
    "change_service_code": Sample(
        {"job": {"command": ["python", "serve.py"], "source": {"text": _CODE}}},
        "berth service run digits . -- python serve.py",
        'berth.service("digits").change(".", job={"command": ["python", "serve.py"]})',
    ),
    "stop_service": Sample(None, "berth service stop digits", 'berth.service("digits").stop()'),
    "start_service": Sample(None, "berth service start digits", 'berth.service("digits").start()'),
    "remove_service": Sample(None, "berth service remove digits", 'berth.service("digits").remove()'),
    "make_service_key": Sample(
        {"name": "web site"},
        "berth service key digits 'web site'",
        'berth.service("digits").make_key("web site")',
    ),
    "remove_service_key": Sample(
        None, "berth service key digits 'web site' --remove", 'berth.service("digits").remove_key("web site")'
    ),
    "list_devices": Sample(None, "berth top", "berth.devices()"),
    "get_device": Sample(None, "berth gpu 0", None),
    "change_device": Sample(
        {"state": "draining"}, "berth drain 0", 'berth.set_device("GPU-5c1f2a90", "draining")'
    ),
    "list_pools": Sample(None, None, "berth.pools()"),
    "make_pool": Sample({"name": "teaching"}),
    "change_pool": Sample({"description": "for the course"}),
    "set_lender": Sample({"system": "slurm", "partition": "gpu", "gpus": 4, "cpus": 32, "longest_s": 14400}),
    "give_right": Sample({"right": "submit"}),
    "change_person": Sample({"role": "submitter"}),
    "make_person": Sample({"username": "ana", "name": "Ana Costa", "role": "submitter"}),
    "import_people": Sample({"csv": "username,role,max_devices\nana,submitter,2\nbo,viewer,\n"}),
    "make_service_token": Sample({"name": "nightly tests", "scope": "write", "expires_in_s": 2592000}),
    "invite_person": Sample({"note": "Ana", "role": "submitter", "quota": {"max_devices": 2}}),
    "make_quota": Sample({"user": "ana", "max_devices": 4}),
    "change_quota": Sample({"max_devices": 6}),
    "list_reservations": Sample(None, "berth calendar list", "berth.calendar()"),
    "make_reservation": Sample(
        {"name": "course", "devices": 2, "from": "2027-01-11T09:00:00Z", "until": "2027-01-11T12:00:00Z"},
        "berth calendar add course --devices 2 --from '2027-01-11 09:00' --until '2027-01-11 12:00'",
        'berth.book({"name": "course", "devices": 2, "from": "2027-01-11T09:00:00Z"})',
    ),
    "change_reservation": Sample(
        {"until": "2027-01-11T13:00:00Z"},
        "berth calendar change 7 --until '2027-01-11 13:00'",
        'berth.change_booking(7, {"until": "2027-01-11T13:00:00Z"})',
    ),
    "delete_reservation": Sample(None, "berth calendar remove 7", "berth.unbook(7)"),
    "list_projects": Sample(None, "berth project list", "berth.projects()"),
    "make_project": Sample({"name": "digits"}, "berth project make digits", 'berth.make_project("digits")'),
    "get_project": Sample(None, "berth project show digits", 'berth.project("digits")'),
    "change_project": Sample({"description": "the paper on digits"}),
    "remove_project": Sample(None, "berth project remove digits", 'berth.remove_project("digits")'),
    "set_member": Sample(
        {"role": "member"}, "berth project add digits ana", 'berth.set_member("digits", "ana")'
    ),
    "drop_member": Sample(None, "berth project drop digits ana", 'berth.drop_member("digits", "ana")'),
    "list_job_notes": Sample(None, "berth note 4f2a91c3", 'berth.job("4f2a91c3").notes()'),
    "note_job": Sample(
        {"text": "The rate was too high.", "step": 1200},
        "berth note 4f2a91c3 'The rate was too high.' --step 1200",
        'berth.job("4f2a91c3").note("The rate was too high.", step=1200)',
    ),
    "note_project": Sample({"text": "Seeds 1 to 5 are done."}),
    "change_note": Sample({"text": "The rate was too high: 3e-3."}),
    "list_links": Sample(None, "berth share --list", "berth.links()"),
    "make_link": Sample(
        {"kind": "job", "jobs": ["4f2a91c3"], "note": "Ana"},
        "berth share 4f2a91c3 --note Ana",
        'berth.share("job", jobs=["4f2a91c3"], note="Ana")',
    ),
    "revoke_link": Sample(None, "berth share --end 7", "berth.unshare(7)"),
    "list_datasets": Sample(None, "berth data list", "berth.datasets()"),
    "make_model": Sample(
        {"name": "digits", "job": "4f2a91c3"},
        "berth model add digits 4f2a91c3",
        'berth.make_model("digits", job="4f2a91c3")',
    ),
    "list_models": Sample(None, "berth model list", "berth.models()"),
    "get_model": Sample(None, "berth model show digits", 'berth.model("digits")'),
    "download_model": Sample(
        None, "berth pull model:digits", 'berth.fetch_model("digits", "model.pt", Path("model.pt"))'
    ),
    "run_recipe": Sample(
        {"recipe": "quantize", "model": "train.py:build_model"},
        "berth model quantize digits --model train.py:build_model",
        'berth.run_recipe("digits", "quantize", model="train.py:build_model")',
    ),
    "serve_model": Sample(
        {"model": "train.py:build_model", "gpu_memory_gib": 4},
        "berth model serve digits --model train.py:build_model --gpu-memory 4",
        'berth.serve_model("digits", model="train.py:build_model", gpu_memory_gib=4)',
    ),
    "list_recipes": Sample(None, "berth model recipes digits", 'berth.recipes("digits")'),
    "remove_model": Sample(None, "berth model rm digits", 'berth.remove_model("digits")'),
    "register_dataset": Sample(
        {"name": "digits", "path": "/data/digits.csv.gz"},
        "berth data add digits /data/digits.csv.gz",
        'berth.add_dataset("digits", path="/data/digits.csv.gz")',
    ),
    "remove_dataset": Sample(None, "berth data rm digits", 'berth.remove_dataset("digits")'),
    "push_dataset": Sample(
        {"name": "digits", "files": [["train.csv", 6, "", "2026-11-22"]]},
        "berth data push digits ./digits",
        'berth.push("digits", "./digits")',
    ),
    "make_token": Sample({"name": "laptop"}),
    "list_secrets": Sample(None, "berth secret list", "berth.secrets()"),
    "keep_secret": Sample(
        {"value": "..."}, "berth secret set HF_TOKEN", 'berth.keep_secret("HF_TOKEN", "...")'
    ),
    "forget_secret": Sample(None, "berth secret forget HF_TOKEN", 'berth.forget_secret("HF_TOKEN")'),
    "add_notification_target": Sample({"url": "mailto://user:password@example.org"}),
    "get_me": Sample(None, None, "berth.me()"),
    "plan_job": Sample(
        {"name": "digits", "gpus": 2, "source": {"text": _CODE}},
        "berth plan -g2 train.py",
        "berth.plan(gpus=2)",
    ),
    "get_usage": Sample(None, "berth usage --by owner", 'berth.usage("owner")'),
}


def add_samples(address: str, method: str, operation: Schema) -> None:
    """Append samples to the description of an operation.

    Args:
        address: its path, with parameters as ``{name}``.
    """
    name = operation["operationId"]
    sample = SAMPLES.get(name, Sample())
    path = _filled(address, name)
    ways = [("curl", "sh", _curl(path, method, sample.body))]
    if sample.command is not None:
        ways.append(("Command line", "sh", sample.command))
    if path.startswith(_OF_THE_CLIENT):
        ways.append(("Python", "python", _python(path.removeprefix(_OF_THE_CLIENT), method, sample)))
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is not None and sample.body is not None:
        content["example"] = sample.body
    parts = [operation.get("description", "")]
    parts += [f"**{label}**\n```{language}\n{text}\n```" for label, language, text in ways]
    operation["description"] = "\n\n".join(part for part in parts if part)


def show_schema(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Serve the schema and its page to people who are signed in, with the reader's own server address in samples."""

    @wraps(view, assigned=())  # ninja passes a partial, which has no name
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            SIGNED_IN(request)
        except Unauthenticated:
            if "text/html" in request.headers.get("Accept", "") and "Authorization" not in request.headers:
                return redirect_to_login(request.get_full_path())
            raise
        response = view(request, *args, **kwargs)
        own = request.build_absolute_uri("/").rstrip("/")
        response.content = response.content.replace(ADDRESS.encode(), own.encode())
        return response

    return answer


def _filled(address: str, operation: str) -> str:
    for name, value in IN_PATHS.items():
        secret = name == "name" and "/secrets/" in address
        address = address.replace(f"{{{name}}}", "HF_TOKEN" if secret else value)
    return address + QUERIES.get(operation, "")


def _curl(path: str, method: str, body: Mapping[str, Any] | None) -> str:
    parts = ["curl", '-H "Authorization: Token $BERTH_TOKEN"']
    if method != "get":
        parts.append(f"-X {method.upper()}")
    if body is not None:
        parts.append(f"-H 'Content-Type: application/json' -d '{json.dumps(body)}'")
    return " ".join([*parts, f"'{ADDRESS}{path}'"])


def _python(path: str, method: str, sample: Sample) -> str:
    call = sample.client
    if call is None and method == "get":
        call = f'berth.send("GET", {json.dumps(path)})'
    elif call is None:
        given = "" if sample.body is None else f", json={sample.body!r}"
        call = f'berth.send("{method.upper()}", {json.dumps(path)}{given})'
    paths = "from pathlib import Path\n\n" if "Path(" in call else ""
    opened = f'berth = Berth("{ADDRESS}")  # the token: BERTH_TOKEN, or `berth login`'
    return f"{paths}from berth.client import Berth\n\n{opened}\n{call}"
