"""Kubernetes as a lender: a pilot is a Job of one pod, asked for by the package ``kubernetes``.

Never run on a cluster so far: tests speak to a server that answers as the API's reference says.
"""

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from orchestrator.lending.port import Grant, GrantState, NoAnswer, PilotRequest, Refused

ANSWERS_WITHIN_S = 30.0
LABEL = "berth/pilot"  # on the Job and its pod: the tag
TOKEN_SECRET = "berth-node-token"  # noqa: S105  # the name of one
KEPT_S = 24 * 3600  # how long the cluster shows what has ended
_PLACES = {"token": "/run/berth-token", "folder": "/run/berth-pilot"}
_SERVER_ERROR, _TOO_MANY, _EXISTS, _NOT_FOUND = 500, 429, 409, 404


class Namespace(NamedTuple):
    """Where pilots run."""

    namespace: str = "default"
    image: str = ""  # with Berth and its extra `nodes`
    python: str = "python"


class KubernetesJobs:
    """``LendingEngine`` over the Jobs of one namespace."""

    def __init__(self, where: Namespace, client: Any = None) -> None:
        """Connect as the pod that this process runs in, else as ``kubectl`` would.

        Args:
            client: an ``ApiClient``; None: made here.

        Raises:
            Refused: the package is not installed, or nothing says where the cluster is.
        """
        try:
            from kubernetes import client as api
            from kubernetes import config
        except ImportError:
            raise Refused("Install Berth with its extra `kubernetes` to ask a cluster for devices.") from None
        if client is None:
            try:
                config.load_config()
            except (config.ConfigException, OSError) as error:
                raise Refused(f"Nothing says where the cluster is; give a KUBECONFIG: {error}") from None
        self._where = where
        self._jobs, self._pods = api.BatchV1Api(client), api.CoreV1Api(client)
        self._error = api.ApiException

    def request(self, wish: PilotRequest) -> str:
        with contextlib.suppress(_Exists):  # the answer to an earlier call was lost
            self._call(self._jobs.create_namespaced_job, body=job_of(wish, self._where))
        return wish.tag

    def grants(self, tags: Collection[str]) -> Mapping[str, Grant]:
        if not tags:
            return {}
        chosen = f"{LABEL} in ({','.join(sorted(tags))})"
        jobs = self._call(self._jobs.list_namespaced_job, label_selector=chosen).items
        pods = self._call(self._pods.list_namespaced_pod, label_selector=chosen).items
        by_tag = {pod.metadata.labels[LABEL]: pod for pod in pods}
        return {tag: _grant(job, by_tag.get(tag)) for job in jobs for tag in [job.metadata.labels[LABEL]]}

    def release(self, grant: str) -> None:
        # In the foreground: the Job is listed until its pod is gone, which is the proof that nothing runs.
        try:
            self._call(self._jobs.delete_namespaced_job, name=grant, propagation_policy="Foreground")
        except _Gone:
            return
        except Refused as error:
            raise NoAnswer(str(error)) from error

    def _call(self, act: Any, **given: Any) -> Any:
        try:
            return act(namespace=self._where.namespace, _request_timeout=ANSWERS_WITHIN_S, **given)
        except self._error as error:
            raise _answer_to(error) from error
        except Exception as error:  # the package passes on errors of several other packages
            raise NoAnswer(f"The cluster does not answer: {error}") from error


class _Exists(Exception):
    """It was asked for already."""


class _Gone(Refused):
    """The cluster has no such Job."""


def _answer_to(error: Any) -> Exception:
    """What a refused call means."""
    status = error.status or 0
    if status == _EXISTS:
        return _Exists()
    said = f"Kubernetes: {_message(error)}"
    if status == _NOT_FOUND:
        return _Gone(said)
    return NoAnswer(said) if status >= _SERVER_ERROR or status in {0, _TOO_MANY} else Refused(said)


def _message(error: Any) -> str:
    """The API's own sentence."""
    try:
        return str(json.loads(error.body)["message"])[:400]
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"


def job_of(wish: PilotRequest, where: Namespace) -> dict[str, Any]:
    """The Job of a pilot."""
    limits = {"nvidia.com/gpu": str(wish.gpus)} if wish.gpus else {}
    command = [
        *(where.python, "-m", "orchestrator.management", "pilot", wish.head),
        *("--token-file", f"{_PLACES['token']}/token", "--name", wish.name),
        *("--folder", f"{_PLACES['folder']}/work", "--lasts-s", str(wish.longest_s)),
    ]
    container = {
        "name": "pilot",
        "image": where.image,
        "command": command,
        "env": [
            {"name": "BERTH_HOME", "value": f"{_PLACES['folder']}/work/home"},
            {"name": "BERTH_DEVICES", "value": wish.devices},
            {"name": "BERTH_CPU_SLOTS", "value": "0"},
        ],
        "resources": {"requests": {"cpu": str(wish.cpus)}, "limits": limits},
        "volumeMounts": [
            {"name": "token", "mountPath": _PLACES["token"], "readOnly": True},
            {"name": "folder", "mountPath": _PLACES["folder"]},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108  # of the pod
        ],
    }
    pod = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": wish.longest_s,  # of the pod: that of a Job counts from its request
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [
            {"name": "token", "secret": {"secretName": TOKEN_SECRET, "defaultMode": 0o400}},
            {"name": "folder", "emptyDir": {}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
    }
    labels = {LABEL: wish.tag, "app.kubernetes.io/managed-by": "berth"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": wish.tag, "labels": labels},
        "spec": {
            "backoffLimit": 0,  # a pilot that ends is over; Berth asks for another
            "ttlSecondsAfterFinished": KEPT_S,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _grant(job: Any, pod: Any) -> Grant:
    name, tag = job.metadata.name, job.metadata.labels[LABEL]
    phase = None if pod is None else pod.status.phase
    began = None if pod is None or pod.status.start_time is None else pod.status.start_time.timestamp()
    lasts_s = job.spec.template.spec.active_deadline_seconds
    until = None if began is None or lasts_s is None else began + lasts_s
    where = "" if pod is None else pod.spec.node_name or ""
    over = next((one for one in job.status.conditions or () if _is_over(one)), None)
    if over is not None or phase in {"Succeeded", "Failed"}:
        reason = _first([pod.status.reason if pod else None, over and over.reason, phase, "Ended"])
        # A server that does not answer may still run what the cluster has given up.
        return Grant(
            name, tag, GrantState.ENDED, reason, until=until, is_proof=phase not in {"Running", "Unknown"}
        )
    if phase in {"Running", "Unknown"}:
        return Grant(name, tag, GrantState.HELD, held_at=began, until=until, where=where)
    return Grant(name, tag, GrantState.WAITING, _why_it_waits(pod), where=where)


def _is_over(condition: Any) -> bool:
    return condition.type in {"Complete", "Failed"} and condition.status == "True"


def _why_it_waits(pod: Any) -> str:
    """In the words of the cluster: of its scheduler, or of the server that fetches the image."""
    if pod is None:
        return "Pending"
    conditions = [one.message for one in pod.status.conditions or () if one.status == "False"]
    starting = [
        one.state.waiting.message or one.state.waiting.reason
        for one in pod.status.container_statuses or ()
        if one.state is not None and one.state.waiting is not None
    ]
    return _first([*starting, *conditions, "Pending"])


def _first(texts: Iterable[Any]) -> str:
    return next(str(text) for text in texts if text)
